"""What people do with a run: one verb, one file."""
