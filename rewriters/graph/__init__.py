"""Reading: a function of the user becomes a graph of what it computes, however it is spelled.

In: the syntax of a function and the names of its module (``modules``). Out: a ``FunctionFlow``.

Read ``nodes`` and ``special`` (what a graph is made of), ``dataflow`` (what a reading results in),
then ``state`` (what the readers share), ``reader`` (the door and the statements),
``control_flow``, ``expressions``, ``calls`` and ``helpers`` (calls that are looked into). These ask
``operators`` and ``canonical`` for the one spelling of a call, ``chunks`` for that of parts of a
dimension, ``submodules`` and ``attributes`` for what ``self.norm`` is. ``aliases`` comes last:
which equal values are tensors of their own, and what shares memory.
"""
