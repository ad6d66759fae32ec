"""Results as one page that asks nobody for anything and is safe to open.

In: a ``Report`` with ``details``, or a ``Comparison``. Out: HTML. ``page`` and ``comparison_page``
say what is on it; ``tables``, ``bars``, ``memory_plot`` and ``rank_map`` are its parts, ``details``
what pictures are drawn from, ``rendering`` how it is put together from ``templates/`` and
``scripts/`` (colours and sizes: ``tokens.css``).
"""
