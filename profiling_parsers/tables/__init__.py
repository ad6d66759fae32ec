"""Columns of the files of a dump, exact and in no more memory than they need.

In: CSV files and arrays of any size. Out: arrays and categories, times as int64 nanoseconds, and
what is wrong with a file as ``Problem``. Read csv_lines.py, csv_columns.py, then side_csv.py, which
makes a table of ``Signals`` of a small file; columns.py and time_index.py are used everywhere.
"""
