"""Profiles of Ascend dies: reading them, naming their kernels, diagnosing them."""
