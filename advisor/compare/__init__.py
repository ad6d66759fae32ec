"""Two runs side by side: what differs, what explains it, and whether predictions held."""
