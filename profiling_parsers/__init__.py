"""Bytes of a profiling dump in, one ``Profile`` out.

In: a path that a user typed. Out: ``find_dumps`` (discover.py) the dumps below it, ``read_profile``
(reader.py) one of them as a ``Profile`` (profile.py, with the columns of schema.py and the tables
of signals.py). formats.py is the one list of the kinds of dump and of what reads each.

To read from the bottom up; each folder uses only those before it:

1. ``tables`` -- columns of a file as numpy and pandas want them: CSV, exact times, categories.
2. ``kernels`` -- what follows from kernels whatever file they come from: Types, bounds, steps.
3. ``trace`` -- the events of a trace, streamed, as tables; any trace, of Ascend or of Kineto.
4. ``attribution`` -- from a kernel to the operator, the line and the module that asked for it.
5. ``text``, ``database``, ``kineto`` -- one export each to a ``Profile``.
6. ``msprof`` -- what ``msprof`` exports, with the readers of ``text`` and ``database``.
7. ``cluster`` -- above discover.py and reader.py: one rank of many to a summary of kilobytes.
"""
