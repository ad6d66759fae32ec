"""Two runs side by side: what differs, what explains it, and whether predictions held.

In come two dumps, reports or baselines, out comes one comparison. Read ``comparison``, then
``side`` (one run, reduced to ``cells``), ``steps``, ``joining`` and ``places`` (what of one run is
what of the other), ``explaining``, ``predictions``, and ``remarks``, which puts it into sentences.
"""
