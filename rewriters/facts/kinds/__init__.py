"""What kind of value something is: a tensor, a mask, a number, an array.

A ``FunctionFlow`` and a ``Match`` go in, truths come out. Read ``value_kinds`` first, which has the
questions; ``uses`` tells from what is done with a value, ``arrays`` what NumPy made.
"""
