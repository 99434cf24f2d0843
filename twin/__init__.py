"""The twin: schedules, step graphs, engines and search.  Never imports torch."""
