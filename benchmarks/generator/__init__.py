"""Dumps of the Ascend PyTorch Profiler in the exact format, of any size, for tests and timings.

One logical run (``run.py``: what ``program.py`` does, on a clock) is written by one file per
output format. The same parameters give the same bytes.
"""
