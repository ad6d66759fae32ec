"""From a dump and a source tree to a finished diagnosis."""
