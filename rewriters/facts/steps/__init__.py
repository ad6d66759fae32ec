"""Whether a step runs a function (``functions``) and its lines (``loops``), from syntax alone.

A function or a line goes in, a truth or a ``Pace`` comes out; ``facts.occasions`` joins them.
"""
