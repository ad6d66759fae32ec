"""The calls worth comparing, made of arguments under which the original runs.

``generate`` takes the assignments that ``inputs.search`` has found and yields calls: other values,
sizes, dtypes and modes; ``limits`` those at the limits of plain numbers and weights, ``boundaries``
those at which both sides of a changed comparison are equal, ``mixed`` those in which dtypes meet,
``modes`` those in evaluation and under ``no_grad``.
``other_sizes`` changes those that the original refuses, while nothing runs.
``axes`` gives each axis a size of its own, ``forms`` gives masks and labels the dtypes that mean
the same; ``trials`` asks the original what a legal call is.
"""
