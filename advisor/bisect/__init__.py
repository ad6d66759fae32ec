"""Which commit made a program slower: searched with a command that makes a dump.

In come a good and a bad commit and a command, out comes a report. Read ``checkouts`` (copies of the
repository, so that the user's own stays as it is), then ``searching``.
"""
