"""What the rules about many ranks measure alike.

In comes a ``Cluster``, out come tables with one row a rank or a group. To read in this order:
``groups``, ``comparing`` (who is unlike the others), ``communication``, ``operators``.
"""
