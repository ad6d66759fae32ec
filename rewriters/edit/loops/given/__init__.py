"""What all others build on: the loops of a function, what values they read, and what is known."""
