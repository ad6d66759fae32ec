"""What several diagnostics measure alike in a recording."""
