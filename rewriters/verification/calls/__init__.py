"""One call: make it, on whatever it runs, and write down everything that it did.

In comes a ``PreparedCall`` (a function, arguments, the state of its object), out comes a
``CallRecord``: results, what changed, gradients, shared memory, the error. ``values`` describes
arguments and makes them, ``leaves`` names the tensors inside of anything, ``device`` says where
calls run and moves tensors there, ``observe`` makes the call, followed by optimiser steps if asked
to (``training``), in its ``surroundings``: its module, settings of torch; ``oracle`` runs it in
float64, ``noise`` with other roundings; ``synchronisations`` counts what the host would wait for;
``coverage`` says which lines it ran. ``device_failures``
are those of a device.
"""
