"""Runs over weeks: kept a line a run, and searched for what changed for good.

In come measurements of the gate, out comes a report of trends. Read ``entries`` (the file),
``shifts`` (steps and drifts of one series), then ``trends``: the report and its verdict.
"""
