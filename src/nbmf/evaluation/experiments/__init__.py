"""Experiments: the paper's §5 on any counts, and models tuned and compared with the same budget."""
