"""Describes, builds and fits a run, and keeps it on disk."""
