"""The terminal: language, loudness, streams, progress, interrupts, files that are written.

What every command needs, and nothing of what any command is about. In any order; ``stopping``
first for who wonders how a command ends, ``written`` for how files appear whole or not at all.
"""
