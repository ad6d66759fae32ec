"""The numbers and sentences of results, in one place so that all outputs say the same.

In: parts of a result. Out: English texts, which ``language`` translates where they are put out.
``report`` first: ``comparison``, ``gate`` and ``ranks`` build on it.
"""
