"""Linear joint embedding, reconstruction and supervised learning in closed form, and their thresholds (arXiv:2505.12477)."""

from vergence.linear.base import Affine
from vergence.linear.estimators import JointEmbedding, Reconstruction, Supervised
from vergence.linear.thresholds import Thresholds, alignment_thresholds

__all__ = ["Affine", "JointEmbedding", "Reconstruction", "Supervised", "Thresholds", "alignment_thresholds"]
