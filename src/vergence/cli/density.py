"""``vergence density``: fit, predict, sample, score."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitSubcommandPrefixes, Positional, UseAppendAction, arg, subcommand

from vergence.cli import options

__all__ = ["RUN", "Density", "run"]

Device = Literal["cpu", "cuda"]


@dataclass(kw_only=True)
class DensityFit:
    """Fit p(target | context) to pairs, and measure it on pairs held out."""

    pairs: Annotated[Positional[Path], arg(metavar="PAIRS")]
    """A .npz file with the arrays context and target, or a .csv file."""
    model: Literal["gaussian", "mixture", "gng", "mdn", "kernel", "particles"] = "mdn"
    """Model to fit; see vergence.mixtures."""
    out: Path = Path("density.safetensors")
    """File to write."""
    target: Annotated[UseAppendAction[list[str]], arg(metavar="COLUMN")] = field(default_factory=list)
    """Column of a .csv file to predict; all others are the context."""
    holdout: float = 0.2
    """Share of the pairs held out to measure the fit; 0 fits to all."""
    set: Annotated[options.Settings, arg(metavar="NAME=VALUE")] = field(default_factory=list)
    """A setting of the model, NAME=VALUE (n_components=5)."""
    seed: options.Seed = 0
    device: Device = "cpu"
    """Device that computes."""


@dataclass(kw_only=True)
class _Use:
    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """File that fit wrote."""
    source: Annotated[Positional[Path], arg(metavar="CONTEXTS")]
    """A .npz file with the array context (for score also target), or a .csv file with the columns of the fit."""
    out: Path
    """File to write: .npz, .csv or .parquet."""


@dataclass(kw_only=True)
class DensityPredict(_Use):
    """Write mean, mode and interval of each context's targets, and the number of modes."""

    level: float = 0.9
    """Probability of the interval."""


@dataclass(kw_only=True)
class DensitySample(_Use):
    """Write samples of each context's targets."""

    n: int = 10
    """Samples for each context."""
    seed: options.Seed = 0


@dataclass(kw_only=True)
class DensityScore(_Use):
    """Write the log-density (nats) of each pair, and where in its distribution the target lies (PIT)."""


@dataclass(kw_only=True)
class Density:
    """Fit a density of targets given contexts, p(target | context), and use it."""

    do: OmitSubcommandPrefixes[
        Annotated[DensityFit, subcommand("fit", prefix_name=False)]
        | Annotated[DensityPredict, subcommand("predict", prefix_name=False)]
        | Annotated[DensitySample, subcommand("sample", prefix_name=False)]
        | Annotated[DensityScore, subcommand("score", prefix_name=False)]
    ]


def run(command: Density) -> None:
    """Runs ``vergence density``."""
    options.check(command.do)
    RUN[type(command.do)](command.do)


def _fit(command: DensityFit) -> None:
    from vergence.data.tables import read_pairs
    from vergence.runs import density
    from vergence.utils.terminal import table

    settings = {"device": command.device, **dict(map(options.parse, command.set))}
    pairs = read_pairs(command.pairs, command.target)
    found = density.fit(pairs, command.model, command.out, settings=settings, holdout=command.holdout, seed=command.seed)
    print(f"{found['model']}: {found['train']} pairs in {found['seconds']:.1f} s")
    if found["scores"]:
        rows = [[name, *scores.values()] for name, scores in found["scores"].items()]
        head = ["", *next(iter(found["scores"].values()))]
        table(f"{found['test']} pairs held out; log-density in nats, larger is better", head, rows)
    print(f"wrote {command.out}; next: vergence density predict {shlex.quote(str(command.out))} CONTEXTS --out FILE")


def _loaded(command: _Use) -> tuple[Any, list[str], list[str]]:
    from vergence import mixtures

    model = mixtures.load(command.model)
    context, target = getattr(model, "columns_", ([], []))
    return model, context, target


def _predict(command: DensityPredict) -> None:
    from vergence.data.tables import read_contexts
    from vergence.runs import density

    model, columns, _ = _loaded(command)
    rows = density.predict(model, read_contexts(command.source, columns), command.out, level=command.level)
    _print_written(command, rows)


def _sample(command: DensitySample) -> None:
    from vergence.data.tables import read_contexts
    from vergence.runs import density

    model, columns, _ = _loaded(command)
    contexts = read_contexts(command.source, columns)
    _print_written(command, density.sample(model, contexts, command.out, n=command.n, seed=command.seed))


def _score(command: DensityScore) -> None:
    from vergence.data.tables import read_pairs
    from vergence.runs import density

    model, context, target = _loaded(command)
    pairs = read_pairs(command.source, *((target, context) if command.source.suffix.lower() == ".csv" else ()))
    _print_written(command, density.score(model, pairs, command.out))


def _print_written(command: _Use, rows: int) -> None:
    print(f"wrote {rows} rows to {os.fspath(command.out)}")


RUN: dict[type, Callable[[Any], None]] = {
    DensityFit: _fit,
    DensityPredict: _predict,
    DensitySample: _sample,
    DensityScore: _score,
}
