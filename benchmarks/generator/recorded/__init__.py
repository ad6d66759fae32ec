"""A program that runs on the CPU, and the run on an NPU that is made of it (needs PyTorch)."""
