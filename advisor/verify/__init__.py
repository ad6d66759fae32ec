"""From a change that somebody made to a verdict on every function that it touches.

In comes a diff, a git revision or two files, out come verdicts. Read ``verifying``, then
``changes`` (fed by ``diff_reading`` and ``git_changes``), ``changed_functions`` with
``definitions``, and what a function is run with: ``recorded_inputs``, ``assumptions``,
``device_branches``.
"""
