"""What ``msprof`` exports below PROF_*.

In: such a folder. Out: a ``Profile``, from the database, else the tables, else the trace: reader.py
chooses among the files that files.py finds, and text and database read them.
"""
