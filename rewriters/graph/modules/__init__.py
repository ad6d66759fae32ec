"""What the text of a module says before anything is followed: names, scopes, imports."""
