"""Many ranks of one job: what each does, which of them matter, and how they compare.

In come the dumps of a folder, out comes the rank to diagnose and what all ranks say together. Read
``looking`` first: ``jobs`` sorts dumps into ranks, ``executors``, ``tasks`` and ``working`` read
each somewhere (``cache`` remembers), ``gathering`` makes tables of them, ``choosing`` picks ranks
to be read as a whole (``details``), ``reporting`` says what comes of it.
"""
