"""Editing: a match becomes new text of the module, read again and validated.

In: the text, a ``Match`` and the form of the rule. Out: a ``Rewrite``, or why there is none.

Read ``rewrite`` first, which takes every step; ``spelling`` writes the replacement with the user's
operands, ``wording`` and ``layout`` in the user's style, ``splice`` puts it into the text, with
``tree_edit``, ``blocks``, ``imports``, ``guards`` and ``dead_code`` (code that nobody needs then).
``statements`` does all of it for what concerns more than one value.
``validation`` has the last word: the new function must compute what the old one did.

``loops`` is a door of its own, for loops over rows: no pattern says what becomes of them.
"""
