"""The gate: few numbers of each run, compared with a baseline."""
