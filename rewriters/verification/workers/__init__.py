"""Jobs over child processes: which backend, how many, and what they found earlier."""
