"""Conditional densities of tables: fit, predict, sample and score, with the rows and columns of files."""
