"""Rules that read a recording: what it shows, and what to do about it.

One file a rule, found by its place; in comes a ``Recording``, out come observations. Begin with
``python_garbage_collection``.
"""
