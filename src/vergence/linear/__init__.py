"""Linear joint embedding and reconstruction in closed form (arXiv:2505.12477)."""

from vergence.linear.estimators import JointEmbedding, Reconstruction

__all__ = ["JointEmbedding", "Reconstruction"]
