"""The passes over the data on one GPU."""
