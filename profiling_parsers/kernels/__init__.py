"""What follows from the kernels alone, whatever file they come from.

In: columns of ``Profile.kernels`` (schema.py). Out: their Type by name, the pipe that bounds them,
how the steps split, the totals per Type.
"""
