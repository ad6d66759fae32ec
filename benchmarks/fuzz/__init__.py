"""Inputs that are wrong in ways nobody thought of, for everything that reads a file."""
