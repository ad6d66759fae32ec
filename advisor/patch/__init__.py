"""From findings to a patch: choose, verify, and write only what is proven.

In comes a diagnosis with its source tree, out come findings with verdicts, and a diff. Read
``patching``, then ``profitability`` (does a change pay) and ``verdicts``; ``suggestions`` makes
diffs without running anything, ``undoing`` takes back what was written.
"""
