"""Operands to try and conditions on them, shared by substitutions.

In comes a ``Draw`` or a ``Site``, out come arguments or whether a condition holds. To read in any
order: ``norms``, ``masks``, ``attention`` (which takes its masks from there),
``optimizer_settings``.
"""
