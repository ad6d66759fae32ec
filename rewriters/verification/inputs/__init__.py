"""What to call with: the function out of its module, and arguments under which it runs."""
