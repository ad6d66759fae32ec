"""The user's project: its configuration and its source files."""
