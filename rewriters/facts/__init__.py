"""What the source, or the recording, proves about the values at a match."""
