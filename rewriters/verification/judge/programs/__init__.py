"""A call that tells two versions apart as a Python program of its own.

``counterexample`` puts it together: both texts, the arguments as ``expressions``, and the text of
``replay``, which does what ``calls.observe`` does with torch alone. Read in this order.
"""
