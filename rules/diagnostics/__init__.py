"""Rules that read a recording: what it shows, and what to do about it."""
