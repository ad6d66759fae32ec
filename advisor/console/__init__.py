"""The terminal: language, loudness, streams, progress, interrupts, files that are written."""
