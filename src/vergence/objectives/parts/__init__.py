"""What several objectives compose: information terms, moving averages, prototypes."""
