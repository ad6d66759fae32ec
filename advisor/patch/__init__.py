"""From findings to a patch: choose, verify, and write only what is proven."""
