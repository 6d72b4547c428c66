"""Linear joint embedding, reconstruction and supervised learning in closed form, thresholds, and advice (arXiv:2505.12477)."""

from vergence.linear.advice import Advice, advise
from vergence.linear.base import Affine
from vergence.linear.estimators import JointEmbedding, Reconstruction, Supervised
from vergence.linear.thresholds import Thresholds, alignment_thresholds

__all__ = ["Advice", "Affine", "JointEmbedding", "Reconstruction", "Supervised", "Thresholds", "advise", "alignment_thresholds"]
