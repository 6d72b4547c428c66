"""`vergence.check` on images: duplicates, measurements, features and regions, scores, the decision, the page."""
