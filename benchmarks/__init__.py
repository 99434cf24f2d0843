"""Benchmarks: programs that measure the project's own speed; they are not part of the tests."""
