"""Tensors that the host makes of numbers alone, which the device can make."""
