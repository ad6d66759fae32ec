"""The gate: few numbers of each run, compared with a baseline.

In come runs, a baseline and the limits of a project, out comes a verdict that CI can act on. Read
``gating``, then ``reading`` and ``measuring`` (a run in few numbers), ``baselines``, ``deciding``
with ``significance`` (worse by more than luck), ``changes`` (what explains it) and
``new_findings``. ``source_gate`` and ``known_findings`` are the gate that needs no dump.
"""
