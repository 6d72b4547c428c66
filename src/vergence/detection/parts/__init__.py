"""What several files of the package share."""
