"""LongCat-Flash in PyTorch: executes a Schedule on the CPU or on NPUs."""
