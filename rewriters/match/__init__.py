"""Matching: where the pattern of a rule lies in the graph of a function, and where it cannot."""
