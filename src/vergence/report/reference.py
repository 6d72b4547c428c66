"""What an objective's paper reports of its own networks, for comparison: the one place of the report that knows objectives."""

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


VJE = Reference(
    values={"variance_mean": 0.3, "variance_cv": 0.75},
    scale="; a variance of 1 is the prior's, so nothing was learned",
    meanings={"variance_mean": "1 is the prior: nothing was learned about the item; 0 is false certainty"},
    source="“The paper's” is what the VJE paper reports of its own networks; it was not measured here.",
    hints={"variance_mean": "the prior's is 1"},
    regime=" (the paper's trained regime: about 0.3 and 0.75)",
)


def reference(objective: str | None) -> Reference:
    """Returns the reference values of an objective; empty ones where its paper reports none."""
    return VJE if objective == "vje" else Reference()
