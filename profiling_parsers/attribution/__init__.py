"""From a kernel to the operator, the line and the module that asked for it."""
