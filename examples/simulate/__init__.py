"""Turns a CPU run of the example into the dump that an NPU run of it might have left."""
