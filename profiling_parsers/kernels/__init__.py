"""What follows from the kernels alone, whatever file they come from."""
