"""What a run leaves for its user to read."""
