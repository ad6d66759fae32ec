"""Results as one page that asks nobody for anything and is safe to open.

In: a ``Report`` with ``details``, or a ``Comparison``. Out: HTML. ``page`` and ``comparison_page``
say what is on it, ``tables`` and ``rank_map`` its parts, ``rendering`` how it is put together from
``templates/``, ``scripts/`` and the charts of ``vendor/``.
"""
