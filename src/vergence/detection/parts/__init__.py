"""What several files of the room share."""
