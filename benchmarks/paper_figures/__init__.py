"""The figures of the paper as races: one file for each group, run by `benchmarks/paper.py`."""
