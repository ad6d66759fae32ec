"""A copy of a dump or a report without what says whose it is.

In comes a path, out comes its redacted copy, or nothing. Read ``dump``, then ``copying`` (piece by
piece), ``identifying`` (what is replaced) and ``pseudonyms`` (by what).
"""
