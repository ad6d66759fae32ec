"""Joins the parts: ranking, estimate, configuration and the command line."""
