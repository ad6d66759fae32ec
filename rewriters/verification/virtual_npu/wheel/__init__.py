"""The shared objects of a torch_npu wheel: what they need, and empty ones that offer it."""
