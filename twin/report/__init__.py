"""Reports: terminal tables, a Perfetto trace, and one offline HTML page a run."""
