"""From the user's source to a patch, and the proof that it computes the same."""
