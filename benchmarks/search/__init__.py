"""``python -m benchmarks.search``: how fast a search is."""
