"""SQLite files, decoded page by page into columns: the path of a database in, numpy arrays out.

``records.py`` decodes records, ``pages.py`` finds them (and says what other ways cost), ``file.py``
opens a database without touching it.
"""
