"""Results as tables in the terminal and as one self-contained page."""
