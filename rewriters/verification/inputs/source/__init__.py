"""What the text of the user's code says about its calls, read without running it.

``slicing`` finds the statements that a function needs; ``shapes`` reads what docstrings,
annotations, comments and ``--assume`` declare of arguments, ``usage`` what the code does with them;
``declarations`` puts both together (with ``operands``, ``guards`` that raise, ``promises`` of rows
and sizes, ``several`` values in one, types in ``texts``) and says which arguments fit. ``training``
reads loops and losses; ``numbers`` lists the numbers on both sides of which the code may do
something else.
"""
