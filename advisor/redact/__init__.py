"""A copy of a dump or a report without what says whose it is."""
