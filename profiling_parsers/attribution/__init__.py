"""From a kernel to the operator, the line of code and the module that asked for it.

In: kernels and a ``Trace``, or the same tables of a database. Out: ``Attribution``, the columns
that ``Profile.kernels`` gets of it. launches.py goes from kernels to operators, operators.py from
there to lines, with call_stack.py, python_calls.py and module_hierarchy.py.
"""
