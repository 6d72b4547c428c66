"""Networks that map items to embeddings, and back."""
