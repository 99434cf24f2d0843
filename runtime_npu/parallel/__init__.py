"""Layouts over several dies: who is in which group, and one process for each rank."""
