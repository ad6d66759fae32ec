"""The db export of the PyTorch profiler, and msprof's own database.

In: an SQLite file that is not trusted. Out: a ``Profile``. Begin at export.py and profile.py. Below
them, a ``Query`` (query.py) goes to a ``Database`` (tables.py), which reads the pages (pages.py,
records.py) or, where they are damaged or unusual, asks SQLite (file.py).
"""
