"""The text export of the PyTorch profiler: one file per table."""
