"""The text of one module in, its changed code and the places of the rules out; nothing is run.

Read ``rewriting`` (bytes to code, kept by ``stored``), then ``changing`` (sites to a new text),
``guarding`` (questions put before the new code), ``alignment`` (old positions on the new tree) and
``proving`` (``--verify``). ``selection`` says what is wanted, ``places`` what came of it.
"""
