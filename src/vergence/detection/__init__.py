"""What is unusual, with a guarantee: conformal p-values, false-discovery control, odd groups, duplicates, measurements."""

from vergence.detection.bounds import certify, fpr_threshold, needed_for_fpr, simultaneous_bounds
from vergence.detection.conformal import cross_p_values, needed_calibration, p_values, q_values, reportable, select
from vergence.detection.contamination import label_trim, to_label
from vergence.detection.shift import drift, serial, shift_weights, training_gap, weighted_p_values, weighted_select

__all__ = [
    "certify",
    "cross_p_values",
    "drift",
    "fpr_threshold",
    "label_trim",
    "needed_calibration",
    "needed_for_fpr",
    "p_values",
    "q_values",
    "reportable",
    "select",
    "serial",
    "shift_weights",
    "simultaneous_bounds",
    "to_label",
    "training_gap",
    "weighted_p_values",
    "weighted_select",
]
