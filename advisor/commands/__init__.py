"""One file per command of ``npufix``."""
