"""Parts that several objectives compose: information terms, moving averages, prototypes, diagnostics, notices."""
