"""One file per command of ``npufix``, listed in ``cli``.

In come the words of a command line, out comes an exit status. A command parses, calls the room of
``advisor`` that does the work, and writes; what several share is in ``common`` and ``outputs``.
"""
