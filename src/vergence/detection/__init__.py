"""What is unusual, with a guarantee: densities and distances on features, conformal p-values, odd groups, duplicates, reasons.

Detectors are scikit-learn estimators, which are imported when first used: scikit-learn takes a second, and a training needs none.
"""

import importlib
from typing import TYPE_CHECKING, Any

from vergence.detection.conformal import (
    Certificate,
    Reportable,
    SimultaneousBounds,
    certify,
    fpr_threshold,
    label_trim,
    needed_calibration,
    needed_for_fpr,
    p_values,
    q_values,
    reportable,
    select,
    simultaneous_bounds,
    tail_p_values,
    to_label,
)
from vergence.detection.duplicates import (
    Duplicates,
    Similarity,
    grouped,
    leaks,
    mild_views,
    near_duplicates,
    near_groups,
    similarity_threshold,
    thumbnail_leaks,
    thumbnails,
)
from vergence.detection.groups import Group, odd_groups
from vergence.detection.images import FLAGS, Measured, flags, image_size, measure, pixel_statistics
from vergence.detection.levels import patch_dictionary, stage_features
from vergence.detection.reasons import explain, extremes, look_at, outlying_features

if TYPE_CHECKING:
    from vergence.detection.combined import CombinedDetector, default_detector
    from vergence.detection.core import Detector, cross_fit, load_detector, save_detector
    from vergence.detection.density import GaussianDetector, MixtureDetector, surprise
    from vergence.detection.neighbors import NeighborDetector

__all__ = [
    "FLAGS",
    "Certificate",
    "CombinedDetector",
    "Detector",
    "Duplicates",
    "GaussianDetector",
    "Group",
    "Measured",
    "MixtureDetector",
    "NeighborDetector",
    "Reportable",
    "Similarity",
    "SimultaneousBounds",
    "certify",
    "cross_fit",
    "default_detector",
    "explain",
    "extremes",
    "flags",
    "fpr_threshold",
    "grouped",
    "image_size",
    "label_trim",
    "leaks",
    "load_detector",
    "look_at",
    "measure",
    "mild_views",
    "near_duplicates",
    "near_groups",
    "needed_calibration",
    "needed_for_fpr",
    "odd_groups",
    "outlying_features",
    "p_values",
    "patch_dictionary",
    "pixel_statistics",
    "q_values",
    "reportable",
    "save_detector",
    "select",
    "similarity_threshold",
    "simultaneous_bounds",
    "stage_features",
    "surprise",
    "tail_p_values",
    "thumbnail_leaks",
    "thumbnails",
    "to_label",
]

_ESTIMATORS = {
    "core": ("Detector", "cross_fit", "load_detector", "save_detector"),
    "density": ("GaussianDetector", "MixtureDetector", "surprise"),
    "neighbors": ("NeighborDetector",),
    "combined": ("CombinedDetector", "default_detector"),
}


def __getattr__(name: str) -> Any:
    """Imports a detector's file when one of its names is first used."""
    for file, names in _ESTIMATORS.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{file}"), name)
    raise AttributeError(f"module 'vergence.detection' has no attribute '{name}'")
