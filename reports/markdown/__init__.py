"""Results as Markdown, which GitHub and GitLab show beside a change.

In: a ``Report``, ``GateReport`` or ``Comparison``. Out: a text. ``report`` first: ``gate`` borrows
how it writes code and texts.
"""
