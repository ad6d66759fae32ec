"""What the operators of the device compute, forward and backward, on the host.

``numerics`` sees every operator that runs on the device and asks ``references`` what computes it:
a reference kernel, the ``derivatives`` of one, one of the ``backward_formulas``, or stock torch
(``torch_only``, ``dropouts``, ``expanded_gradients``), with the ``random_numbers`` of the device.
``results`` puts that where the device has its own. ``composites`` are operators that no one would
see as a whole; ``autograd`` records gradients below autograd.
"""
