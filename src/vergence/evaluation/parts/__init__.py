"""What several evaluations compose: the spread of a cloud, and its nearest neighbors."""
