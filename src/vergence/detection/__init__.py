"""What is unusual, with a guarantee: densities and distances on features, conformal p-values, odd groups, duplicates, reasons.

Detectors are scikit-learn estimators. A name is imported when it is first used.
"""

import importlib
from typing import Any

_FILES = {  # public names of each file
    "core": ("Detector", "cross_fit", "load_detector", "restore", "save_detector"),
    "gaussian": ("GaussianDetector",),
    "subspace": ("SubspaceDetector",),
    "mixture": ("MixtureDetector",),
    "neighbors": ("NeighborDetector",),
    "combined": ("CombinedDetector", "default_detector"),
    "statistics": ("pixel_statistics",),
    "levels": ("patch_dictionary", "stage_features"),
    "conformal": ("Reportable", "cross_p_values", "needed_calibration", "p_values", "q_values", "reportable", "select"),
    "bounds": ("Certificate", "SimultaneousBounds", "certify", "fpr_threshold", "needed_for_fpr", "simultaneous_bounds"),
    "shift": ("Drift", "drift", "serial", "shift_weights", "training_gap", "weighted_p_values", "weighted_select"),
    "contamination": ("label_trim", "tail_p_values", "to_label"),
    "groups": ("Group", "odd_groups"),
    "duplicates": (
        "Duplicates",
        "Similarity",
        "grouped",
        "leaks",
        "mild_views",
        "near_duplicates",
        "near_groups",
        "perceptual_hash",
        "similarity_threshold",
        "thumbnail_leaks",
        "thumbnails",
    ),
    "exact": ("exact_duplicates", "same_files"),
    "measurements": ("FLAGS", "Measured", "flags", "image_size", "measure"),
    "pairs": ("ConditionalDetector", "surprise"),
    "reasons": ("explain", "extremes", "look_at", "outlying_features"),
}

__all__ = [name for names in _FILES.values() for name in names]


def __getattr__(name: str) -> Any:
    """Imports a file when one of its names is first used."""
    for file, names in _FILES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{file}"), name)
    raise AttributeError(f"module 'vergence.detection' has no attribute '{name}'")
