"""Whether two versions differ: both are called, a third run decides, differences are shown."""
