"""Walls around the user's code: what a process of a job may do, and how it is started and ended."""
