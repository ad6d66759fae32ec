"""Results on a terminal, with rich; ``language.terminal`` translates and breaks the lines.

In: a result and a console. Out: what is printed. ``text`` and ``rows`` are what all use, then
``tables``, ``findings`` and ``ranks``; ``report``, ``gate``, ``comparison`` and ``verification``
show a result each, ``rules``, ``explanation`` and ``doctor`` what commands of
their own ask for.
"""
