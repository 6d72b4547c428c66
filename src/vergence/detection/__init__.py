"""What is unusual, with a guarantee: conformal p-values, false-discovery control, odd groups, duplicates, measurements."""

from vergence.detection.conformal import cross_p_values, needed_calibration, p_values, q_values, reportable, select

__all__ = ["cross_p_values", "needed_calibration", "p_values", "q_values", "reportable", "select"]
