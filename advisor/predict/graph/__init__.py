"""A step as a graph, and how it runs again with some of it changed.

In comes a ``StepGraph`` (``predict.recorded`` makes it), with an ``Edit`` for each variant; out
come the lengths of the step in all of them, and what its critical path is. Read ``step_graph``,
``replay``, then ``stretches`` and ``segments`` (which make it fast), and ``critical_path``.
"""
