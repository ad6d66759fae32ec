"""Matching: where the pattern of a rule lies in the graph of a function, and where it cannot.

In: a ``FunctionFlow`` and a rule. Out: ``Match`` objects: the place, what each variable stands for,
and which nodes the pattern covers.

Read ``matching`` first; it is the whole algorithm. ``prefilter``, ``vocabulary`` and ``features``
only save time: they say from its words which rules a text may concern at all. ``suppressions``
are the comments of the user that forbid a rule.
"""
