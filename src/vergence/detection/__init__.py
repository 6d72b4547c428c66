"""What is unusual, with a guarantee: conformal p-values, false-discovery control, odd groups, duplicates, measurements."""

from vergence.detection.bounds import certify, fpr_threshold, needed_for_fpr, simultaneous_bounds
from vergence.detection.conformal import cross_p_values, needed_calibration, p_values, q_values, reportable, select
from vergence.detection.contamination import label_trim, tail_p_values, to_label
from vergence.detection.duplicates import (
    exact_duplicates,
    grouped,
    leaks,
    mild_views,
    near_duplicates,
    perceptual_hash,
    same_files,
    similarity_threshold,
)
from vergence.detection.groups import odd_groups
from vergence.detection.measurements import flags, image_size, measure
from vergence.detection.reasons import Reason, Reasons
from vergence.detection.shift import drift, serial, shift_weights, training_gap, weighted_p_values, weighted_select

__all__ = [
    "Reason",
    "Reasons",
    "certify",
    "cross_p_values",
    "drift",
    "exact_duplicates",
    "flags",
    "fpr_threshold",
    "grouped",
    "image_size",
    "label_trim",
    "leaks",
    "measure",
    "mild_views",
    "near_duplicates",
    "needed_calibration",
    "needed_for_fpr",
    "odd_groups",
    "p_values",
    "perceptual_hash",
    "q_values",
    "reportable",
    "same_files",
    "select",
    "serial",
    "shift_weights",
    "similarity_threshold",
    "simultaneous_bounds",
    "tail_p_values",
    "to_label",
    "training_gap",
    "weighted_p_values",
    "weighted_select",
]
