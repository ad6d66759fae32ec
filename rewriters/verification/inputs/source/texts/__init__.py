"""What docstrings say beside shapes: ``types`` of arguments."""
