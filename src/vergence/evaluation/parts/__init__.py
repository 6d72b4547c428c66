"""Parts that several evaluations share: the spread of features, and their nearest neighbors."""
