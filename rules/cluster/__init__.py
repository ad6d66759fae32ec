"""Cluster table: what the ranks of a job show beside each other, one file per rule."""
