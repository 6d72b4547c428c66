"""Random views of images and vectors."""
