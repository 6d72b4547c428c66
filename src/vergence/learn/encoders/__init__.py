"""Networks that map items to embeddings, and embeddings to images."""
