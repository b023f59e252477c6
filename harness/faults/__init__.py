"""What can go wrong on the way, and where we listen."""
