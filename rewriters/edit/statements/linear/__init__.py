"""Linear layers: several of one input, and weights of few bits that are made wide in each call."""
