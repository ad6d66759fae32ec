"""Waits that nothing reads a value for: sizes that are tensors, and waits that are asked for."""
