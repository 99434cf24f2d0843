"""Backends: implementations of the ops that the model issues."""
