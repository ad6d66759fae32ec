"""Traces of torch.profiler (Kineto), of a GPU or a CPU."""
