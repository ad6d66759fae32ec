"""Editing: a match becomes new text of the module, read again and validated."""
