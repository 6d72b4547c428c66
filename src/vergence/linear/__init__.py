"""Linear joint embedding, reconstruction and supervised learning in closed form (arXiv:2505.12477)."""

from vergence.linear.base import Affine
from vergence.linear.estimators import JointEmbedding, Reconstruction, Supervised

__all__ = ["Affine", "JointEmbedding", "Reconstruction", "Supervised"]
