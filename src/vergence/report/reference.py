"""What an objective's paper reports for its own networks, for comparison, as the objective declares it."""

import dataclasses
from dataclasses import dataclass, field

__all__ = ["Reference", "reference"]


@dataclass(frozen=True)
class Reference:
    """Values that a paper reports; nothing here was measured by this library.

    Attributes:
        values: Value of each posterior statistic, by its name in ``evaluation.json``.
        scale: What a posterior variance of 1 means, as the end of a sentence.
        meanings: What a statistic means under this objective, where that is more than what it means under any.
        source: Sentence that says whose values these are.
        hints: As ``meanings``, for the training curves.
        regime: The values in words, for the terminal.
    """

    values: dict[str, float] = field(default_factory=dict)
    scale: str = ""
    meanings: dict[str, str] = field(default_factory=dict)
    source: str = ""
    hints: dict[str, str] = field(default_factory=dict)
    regime: str = ""


def reference(objective: str | None) -> Reference:
    """Returns what an objective declares of its paper's values; empty for objectives from outside the library."""
    from vergence import objectives  # imports torch

    kind = None if objective is None else objectives.find(objective)
    if kind is None:
        return Reference()
    reported = [f"{kind.reference[key]:g}" for key in ("variance_mean", "variance_cv") if key in kind.reference]
    about = Reference(
        values={key: value for key, value in kind.reference.items() if key != "prior_variance"},
        source="“The paper's” is what the objective's paper reports for its own networks; it was not measured here.",
        regime=f" (in the objective's paper about {' and '.join(reported)})" if reported else "",
    )
    if "prior_variance" not in kind.reference:
        return about
    prior = f"{kind.reference['prior_variance']:g}"
    return dataclasses.replace(
        about,
        scale=f"; a variance of {prior} is the prior's, so nothing was learned",
        meanings={"variance_mean": f"{prior} is the prior: nothing was learned about the item; 0 is false certainty"},
        hints={"variance_mean": f"the prior's is {prior}"},
    )
