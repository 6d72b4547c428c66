"""From scores to decisions with a stated error rate: detectors on vectors, conformal p-values, flags, matches, streams."""

from typing import TYPE_CHECKING

from vergence.utils.lazy import on_request

if TYPE_CHECKING:
    from vergence.decide.conformal import certify, fpr_threshold, label_trim, needed_calibration, needed_for_fpr

    # isort: split
    from vergence.decide.conformal import p_values, q_values, reportable, select, simultaneous_bounds, tail_p_values, to_label
    from vergence.decide.core import Calibrated, Detector, cross_fit
    from vergence.decide.decisions import Decisions, calibrate, explain
    from vergence.decide.density import GaussianDetector, MixtureDetector, surprise
    from vergence.decide.feature_sets import FeatureSets
    from vergence.decide.matching import Matcher, Matches
    from vergence.decide.neighbors import NeighborDetector
    from vergence.decide.streams import Monitor
else:
    __getattr__, __dir__ = on_request(__name__)

__all__ = ["Calibrated", "Decisions", "Detector", "FeatureSets", "GaussianDetector", "Matcher", "Matches", "MixtureDetector"]
__all__ += ["Monitor", "NeighborDetector", "calibrate", "certify", "cross_fit", "explain", "fpr_threshold", "label_trim"]
__all__ += ["needed_calibration", "needed_for_fpr", "p_values", "q_values", "reportable", "select", "simultaneous_bounds"]
__all__ += ["surprise", "tail_p_values", "to_label"]
