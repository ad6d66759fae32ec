"""A result as data for other programs: what several formats are made of.

In: a result. Out: ``notices`` at lines of the repository (with ``sources``, which knows where
files are, and ``fixes``, which reads a diff), ``tables`` with typed columns (and the
``spreadsheet`` cells they go into), ``trace_events`` on a time line.
"""
