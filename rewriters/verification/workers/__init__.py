"""Jobs over child processes: which backend, how many, and what they found earlier.

``parent.verify`` takes jobs and returns verdicts: from the ``cache``, or from a ``pool`` of
children (``process``), each of which is ``child.main`` in a process of its own. ``machine`` looks
at what is installed here, ``backends`` chooses what to run on and how to start it.

Where a function does not run, ``fragment`` asks of its changed statements alone, or behind their
``definitions``; of settings of an optimizer, ``configured`` asks what they make.
"""
