"""Advice before training: what the views change, what they leave, trials of candidates, and the page."""
