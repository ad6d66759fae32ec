"""Traces of torch.profiler (Kineto), of a GPU or a CPU.

In: a ``.pt.trace.json``, packed or not. Out: a ``Profile``. Begin at reader.py; events.py makes
tables of the events, launches.py finds the operator of each device task, kernels.py the columns.
"""
