"""Puts this folder on the path for the tests in folders below, which share its snippets."""
