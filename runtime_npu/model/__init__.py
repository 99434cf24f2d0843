"""LongCat-Flash as modules that issue ops on a backend."""
