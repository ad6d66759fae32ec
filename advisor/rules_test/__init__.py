"""The tests of a rule, wherever its file is: what ``npufix rules test`` and our own tests run.

In comes a rule (``subject.read`` loads one from a file), out come problems, each a sentence with
what to do. To read in this order: ``subject``, ``every_kind`` (identifiers, documentation,
versions), ``substitutions`` (forms, examples, look-alikes), ``computing`` (equivalence and
``mutations``, which need torch), ``recordings`` (rules about a run or a job), ``running``.
"""
