"""Data sets, folders, arrays and tables, and the random views of their items."""
