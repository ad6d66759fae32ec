"""Operands to try, and conditions on them, that several substitutions share."""
