"""The fusion table: a sequence of small operators and the fused kernel."""
