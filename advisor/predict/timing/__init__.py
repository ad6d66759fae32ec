"""A program that times a recorded operator again, beside other ways to compute the same.

In come the kernels of a run, out comes the text of a program that needs torch alone. Read
``program`` (what it is made of), ``calls`` (which Types can be timed) and ``ways`` (those that
take more than a call).
"""
