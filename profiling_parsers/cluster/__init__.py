"""One rank of many, from files that are small whatever it recorded.

In: the path of a dump. Out: ``Summary``, a few kilobytes that travel and are kept. Begin at
reading.py; the whole dump is read only where the small files say nothing. fingerprint.py tells
whether a dump was read before.
"""
