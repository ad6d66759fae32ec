"""Files on disk: all of a change or none of it, and taking it back.

In: ``FileChange`` objects, old and new bytes of a file. Out: a unified diff, or changed files.

Read ``patch``, then ``writing``. ``journal`` keeps what is needed to undo a change, ``recovering``
ends one that was interrupted, ``durable`` brings bytes safely to disk.
"""
