"""What the rules about many ranks measure alike."""
