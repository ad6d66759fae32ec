"""Settings table: what to change beside the code, one file per rule."""
