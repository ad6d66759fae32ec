"""The affinity table: a slow operator and its NPU-friendly equivalent."""
