"""Joint embedding or reconstruction, before training: measurements, verdict and summary."""

from vergence.linear.advice.advise import advise
from vergence.linear.advice.records import Advice

__all__ = ["Advice", "advise"]
