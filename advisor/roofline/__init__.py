"""How quickly a kernel could run at most: its work, by its shapes, over the rates of the chip.

In come kernels with their shapes, out come bounds in nanoseconds. Read ``work`` (operations and
bytes of a kernel, of products in ``products``), ``rates`` (of the chip, or of the recording
itself where the chip is not known) and ``bounds``.
"""
