"""Dumps of the Ascend PyTorch Profiler in the exact format, of any size, for tests and timings.

A run (``run.py``: launches and kernels of a program, on a clock) is written by ``files``, a module
for each file of a dump. The program is that of ``program.py``, or one that ``recorded`` has watched
on the CPU. The same parameters give the same bytes.
"""
