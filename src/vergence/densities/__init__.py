"""Distributions that torch lacks, and the ways to fit them."""

from vergence.densities.covariance import Covariance, Dense, Diagonal, LowRank, PairedLowRank
from vergence.densities.gaussian import GaussianMixture, JointGaussian
from vergence.densities.polar import PolarStudentT
from vergence.densities.power_spherical import PowerSpherical, SphereUniform

__all__ = [
    "Covariance",
    "Dense",
    "Diagonal",
    "GaussianMixture",
    "JointGaussian",
    "LowRank",
    "PairedLowRank",
    "PolarStudentT",
    "PowerSpherical",
    "SphereUniform",
]
