"""What the operators of the device compute, forward and backward, on the host."""
