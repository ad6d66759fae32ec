"""Reading: a function of the user becomes a graph of what it computes, however it is spelled."""
