"""Engines: what turns a StepGraph into a Timeline."""
