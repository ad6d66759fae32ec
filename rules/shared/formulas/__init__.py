"""Fused operators that a program writes out as the kernels of their formulas.

In come the kernels of a recording, out go those of a formula, its gradient, and what fused kernels
take in their place. Read ``formulas`` (which Types follow each other), then ``gradients``, then
``gains``.
"""
