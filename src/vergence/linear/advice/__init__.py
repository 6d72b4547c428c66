"""Joint embedding or reconstruction, before training: evidence, verdict and words."""

from vergence.linear.advice.advise import Advice, advise

__all__ = ["Advice", "advise"]
