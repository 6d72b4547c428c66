"""Expectation maximization for Gaussian mixtures."""
