"""What a recording says, joined with the user's lines: where the time goes, what it is worth."""
