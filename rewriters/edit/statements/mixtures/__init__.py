"""Mixtures of experts: ``experts`` finds the loops over them, ``routers`` what selects them.

Both hold searches as in the folder above, which ``searches`` lists.
"""
