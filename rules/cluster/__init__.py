"""Rules that compare the ranks of a job: which one holds up which.

One file a rule, found by its place; in comes a ``Cluster``, out come observations. Begin with
``slow_computing_rank``.
"""
