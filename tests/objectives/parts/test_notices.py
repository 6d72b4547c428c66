"""Notices: each names what its diagnostics show to be wrong, its cause and its remedy."""

import pytest

from vergence.objectives.parts.diagnostics import notices as judged


@pytest.mark.parametrize(
    ("stats", "name", "words"),
    [
        (
            {"variance": 1e-5, "mahalanobis": 0.5},
            "variance",
            "shrinks to a point (mean variance 1e-05): the regularization is too weak",
        ),
        ({"variance": 1e-5, "mahalanobis": 1.01}, "variance", "the trace trap"),
        ({"variance": 1.0, "condition": 1e7}, "condition", "loses directions (condition 1e+07)"),
        ({"variance": 1.0, "mahalanobis": 3.0}, "mahalanobis", "lags behind"),
        ({"ess": 0.05}, "ess", "few particles"),
        ({"component_share": 0.1}, "component_share", "few components"),
    ],
)
def test_notices_name_the_cause_and_the_remedy(stats, name, words):
    found = judged(stats)
    assert list(found) == [name] and words in found[name] and ": " in found[name] and "\n" not in found[name]


def test_a_healthy_run_has_no_judged():
    assert judged({}) == judged({"variance": 1e-9}) == {}  # a loss on directions leaves the scale free
    healthy = {"variance": 1.0, "condition": 1e3, "mahalanobis": 1.0, "ess": 0.9, "component_share": 0.9, "information": 3.0}
    assert judged(healthy) == {}
    assert judged({"variance": 1e-3, "condition": 1e4, "mahalanobis": 1.9, "ess": 0.2, "component_share": 0.3}) == {}
