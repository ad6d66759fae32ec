"""Rules that rewrite code: two PyTorch functions that compute the same.

One file a rule, found by its place; out comes its ``RULE``, a ``Substitution``. ``x_examples``,
``x_look_alikes`` and ``x_forms`` belong to ``x``. Begin with ``integer_cumsum``.
"""
