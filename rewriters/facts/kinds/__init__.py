"""What tells kinds of values apart: that NumPy made them (``arrays``), or their ``uses``.

Nodes of a function go in, sets of nodes or truths come out; ``facts.value_kinds`` joins them.
"""
