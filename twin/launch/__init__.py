"""Launch configurations: to and from the files that people start LongCat-Flash with today."""
