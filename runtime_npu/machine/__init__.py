"""What a machine offers for a run on NPUs, and what is missing."""
