"""Distributions that torch lacks, and the ways to fit them."""

from vergence.densities.covariance import Covariance, Dense, Diagonal, LowRank, Paired
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.densities.power_spherical import PowerSpherical

__all__ = ["Covariance", "Dense", "Diagonal", "JointGaussian", "LowRank", "MixtureOfGaussians", "Paired", "PowerSpherical"]
