"""The db export of the PyTorch profiler, and msprof's own database."""
