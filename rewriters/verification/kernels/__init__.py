"""Reference kernels: what each operator of torch_npu computes, in ordinary torch on CPU.

One module per operator, named after it. ``forward`` takes the operator's arguments in the order
of its schema, refuses what the operator refuses, and rounds where the operator rounds. Its
derivative is the gradient of the operator, unless the module says otherwise:

- ``NOT_DIFFERENTIABLE``: results that no gradient flows through on the device either;
- ``BACKWARD = "silent"``: the operator has no derivative and gradients are lost without an error;
- ``SILENT_IN``: versions of torch_npu in which that is so;
- ``BACKWARD = "raises"``: the operator has no derivative and backward raises;
- ``check_backward``: what backward refuses beyond that, called like ``forward``;
- ``RANDOM = True``: it draws random numbers, which the backward pass must see again.
"""
