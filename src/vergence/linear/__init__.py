"""Linear joint embedding and reconstruction in closed form, and their thresholds (arXiv:2505.12477)."""

from vergence.linear.base import Affine
from vergence.linear.estimators import JointEmbedding, Reconstruction
from vergence.linear.thresholds import Thresholds, alignment_thresholds

__all__ = ["Affine", "JointEmbedding", "Reconstruction", "Thresholds", "alignment_thresholds"]
