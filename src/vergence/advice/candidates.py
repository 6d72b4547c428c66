"""Records of what was tried before training, their order, and what follows from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["CANDIDATES", "Candidate", "Trial"]

Candidate = Literal["as_they_are", "frozen", "closed_form", "joint_embedding", "reconstruction"]
CANDIDATES: dict[Candidate, str] = {
    "as_they_are": "the items as they are",
    "frozen": "the frozen network",
    "closed_form": "the closed form",
    "joint_embedding": "a network, joint embedding",
    "reconstruction": "a network, reconstruction",
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one candidate reached; None is what was not measured."""

    kind: Candidate
    command: str  # the command that trains it on all of the data; empty where there is none
    seconds: float  # of fitting it here
    items: int  # training items that it was fitted to
    epochs: int  # epochs that it was trained for; 0 without a network that is trained
    dim: int  # features D
    # see `vergence.learn.evaluation.accuracy.rank_error`, of two views of test items, in [0, 1]; smaller is better
    rank_error: float
    effective_rank: float  # see `vergence.learn.evaluation.collapse.effective_rank`
    lidar: float  # see `vergence.learn.evaluation.collapse.lidar`
    knn: float | None = None  # accuracy by 20 neighbors on the test items, in [0, 1]
    probe: float | None = None  # accuracy of a ridge classifier on the test items, in [0, 1]
    interval: float | None = None  # half the width of the 95 % interval of both accuracies

    @property
    def accuracy(self) -> float:
        """Mean of both accuracies; 0 without labels."""
        return ((self.knn or 0.0) + (self.probe or 0.0)) / 2


def best_first(trials: Sequence[Trial]) -> list[Trial]:
    """Returns trials, the best first: by accuracy, and without labels by how well they recognize views."""
    return sorted(trials, key=lambda trial: (-trial.accuracy, trial.rank_error))


def say_trials(trials: Sequence[Trial]) -> str:
    """Returns what follows from trials, in sentences: the best, "cannot tell", or the simple rule."""
    first, *others = best_first(trials)
    if not others:
        return "Only one candidate could be tried."
    second = others[0]
    if first.knn is not None:
        a, b = CANDIDATES[first.kind], CANDIDATES[second.kind]
        numbers = f"kNN {first.knn:.1%} and probe {first.probe:.1%}, {b} {second.knn:.1%} and {second.probe:.1%}"
        reach = ((first.interval or 0.0) ** 2 + (second.interval or 0.0) ** 2) ** 0.5
        if first.accuracy - second.accuracy < reach:
            return f"Of what was tried, cannot tell {a} and {b} apart: {numbers} (+- {100 * reach:.1f} points). Choose by cost."
        return f"Of what was tried, {a} is best, by labels: {numbers} (+- {100 * reach:.1f} points)."
    return simple_rule(pictures=any(trial.kind == "closed_form" and trial.command for trial in trials))


def simple_rule(pictures: bool) -> str:
    """Returns what to start with where no labels decide: no criterion without labels chose better in docs/guides/advice.md."""
    if pictures:
        return (
            "To start with: a pretrained network, if one is at hand and the pictures are photographs; otherwise the closed form, "
            "the default of vergence train. Networks that were trained for minutes on a CPU were worse on most data."
        )
    return (
        "To start with: the vectors as they are, in columns of unit variance. Closed form and networks were "
        "better on some data and worse on other; labels of some items and --minutes show which."
    )
