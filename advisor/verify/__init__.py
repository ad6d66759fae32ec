"""From a change that somebody made to a verdict on every function that it touches."""
