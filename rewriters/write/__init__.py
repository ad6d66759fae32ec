"""Files on disk: all of a change or none of it, and taking it back."""
