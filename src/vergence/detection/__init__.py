"""What is unusual, with a guarantee: densities and distances on features, p-values, unusual groups, duplicates, reasons."""

from vergence.detection.combined import CombinedDetector, default_detector
from vergence.detection.conformal import (
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
from vergence.detection.copies import Copies, copy_groups, find_copies, small_picture
from vergence.detection.core import Detector, cross_fit, load_detector, save_detector
from vergence.detection.decisions import Calibrated, Decisions, calibrate
from vergence.detection.density import GaussianDetector, MixtureDetector, surprise
from vergence.detection.duplicates import (
    mild_views,
    near_duplicates,
    near_groups,
    similarity_threshold,
    thumbnails,
)
from vergence.detection.groups import odd_groups
from vergence.detection.images import pixel_statistics
from vergence.detection.levels import patch_dictionary, stage_features
from vergence.detection.matching import Matcher, Matches
from vergence.detection.measurements import MEASUREMENTS, measure, properties
from vergence.detection.neighbors import NeighborDetector
from vergence.detection.reasons import explain, look_at
from vergence.detection.streams import Monitor

__all__ = [
    "MEASUREMENTS",
    "Calibrated",
    "CombinedDetector",
    "Copies",
    "Decisions",
    "Detector",
    "GaussianDetector",
    "Matcher",
    "Matches",
    "MixtureDetector",
    "Monitor",
    "NeighborDetector",
    "calibrate",
    "certify",
    "copy_groups",
    "cross_fit",
    "default_detector",
    "explain",
    "find_copies",
    "fpr_threshold",
    "label_trim",
    "load_detector",
    "look_at",
    "measure",
    "mild_views",
    "near_duplicates",
    "near_groups",
    "needed_calibration",
    "needed_for_fpr",
    "odd_groups",
    "p_values",
    "patch_dictionary",
    "pixel_statistics",
    "properties",
    "q_values",
    "reportable",
    "save_detector",
    "select",
    "similarity_threshold",
    "simultaneous_bounds",
    "small_picture",
    "stage_features",
    "surprise",
    "tail_p_values",
    "thumbnails",
    "to_label",
]
