"""Rules that rewrite code: two PyTorch functions that compute the same."""
