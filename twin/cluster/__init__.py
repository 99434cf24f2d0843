"""The cluster engine: all dies of a deployment, coupled, with their own loads and jitter."""
