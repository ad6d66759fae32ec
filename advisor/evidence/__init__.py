"""What a recording says, joined with the user's lines: where the time goes, what it is worth.

In come a profile and a source tree, out come frames of kernels by line, and estimates. Read
``recorded_paths`` (whose file is it), ``lines``, ``steady_steps``, then ``ranking``, ``estimate``
and ``run_findings``. ``hygiene`` says what the dump lacks.
"""
