"""One model that is built already: fused operators put into it, and taken out again.

Read ``applying`` first. ``loaded`` finds the source of a model's classes, ``planning`` decides for
each module what becomes of it (``facts``: what its parameters prove; ``copies``: code that several
classes share), ``classes`` makes the new class, ``outcome`` says what came of it and undoes it.
"""
