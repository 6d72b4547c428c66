"""Parts that several detectors share: moments of items, robust choices of items, tails of scores."""
