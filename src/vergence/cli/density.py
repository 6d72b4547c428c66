"""``vergence density``: fit, predict, sample, log-prob."""

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitSubcommandPrefixes, Positional, UseAppendAction, arg, subcommand

from vergence.cli import options
from vergence.utils.checks import counted

__all__: list[str] = []

MODELS = "Model to fit: gaussian, mixture, gng, kernel, mdn, particles; auto compares them; see vergence.mixtures."


Columns = Annotated[UseAppendAction[list[str]], arg(metavar="COLUMNS", help_behavior_hint="")]


@dataclass(kw_only=True)
class DensityFit:
    """Fit p(target | context) to pairs and evaluate it on held-out pairs."""

    pairs: Annotated[Positional[Path], arg(metavar="PAIRS")]
    """A .npz file with the arrays context and target, or a table: .csv, .tsv, .parquet, .xlsx, packed or not."""
    model: Annotated[str, arg(metavar="NAME", help=MODELS)] = "auto"
    out: Annotated[Path, arg(help="File to write.")] = Path("density.safetensors")
    target: Columns = field(default_factory=list)
    """Columns of a table to predict: a name, several between commas, or FIRST:LAST."""
    context: Columns = field(default_factory=list)
    """Columns to predict from; by default all others that hold numbers, dates or categories."""
    drop: Columns = field(default_factory=list)
    """Columns that are not used."""
    id: Columns = field(default_factory=list)
    """Columns that name the rows: no context, but written beside each answer."""
    groups: Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")] = None
    """Column, or array of a .npz file, of subjects: auto chooses what suits new ones. It is not part of the context."""
    ordered: Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")] = None
    """Column, or array, of times: auto chooses what suits later rows. It is not part of the context."""
    seconds: Annotated[float | None, arg(metavar="S", help_behavior_hint="")] = None
    """Time after which auto tries no other model."""
    holdout: Annotated[float, arg(help="Share of the pairs that is held out for evaluation of a named model; 0 for none.")] = 0.2
    set: Annotated[options.Settings, arg(metavar="NAME=VALUE")] = field(default_factory=list)
    """Setting of the model, NAME=VALUE (n_components=5)."""
    seed: options.Seed = 0
    device: Annotated[Literal["cpu", "cuda"], arg(help="Device to compute on.")] = "cpu"
    threads: options.Threads = None


@dataclass(kw_only=True)
class _Use:
    model: Annotated[Positional[Path], arg(metavar="MODEL", help="File that fit wrote.")]
    source: Annotated[Positional[Path], arg(metavar="CONTEXTS")]
    """A .npz file with the array context (and target for log-prob), or a table with the columns used in fit."""
    out: options.TableOut = None


@dataclass(kw_only=True)
class DensityPredict(_Use):
    """Write the mean, mode, central interval and effective number of modes of the target for each context.

    The mode is approximated by the mean of the heaviest component. The column answers counts distinguishable components, of
    which gng and particles have several for each mode.
    """

    level: Annotated[float, arg(help="Probability of the interval.")] = 0.9


@dataclass(kw_only=True)
class DensitySample(_Use):
    """Write samples of each context's targets."""

    n: Annotated[int, arg(help="Samples per context.")] = 10
    seed: options.Seed = 0


@dataclass(kw_only=True)
class DensityLogProb(_Use):
    """Write the log-density (nats) of each pair and the target's probability integral transform (PIT)."""


VERBS = {"fit": DensityFit, "predict": DensityPredict, "sample": DensitySample, "log-prob": DensityLogProb}


WRITTEN = {DensityPredict: "predictions", DensitySample: "samples", DensityLogProb: "log-prob"}  # names of files
NEXT = {DensityPredict: "sample", DensitySample: "predict", DensityLogProb: "predict"}  # what else can be asked


@dataclass(kw_only=True)
class Density:
    """Fit a conditional density p(target | context), predict and sample with it, and write log-densities."""

    density: OmitSubcommandPrefixes[
        Annotated[DensityFit, subcommand("fit", prefix_name=False)]
        | Annotated[DensityPredict, subcommand("predict", prefix_name=False)]
        | Annotated[DensitySample, subcommand("sample", prefix_name=False)]
        | Annotated[DensityLogProb, subcommand("log-prob", prefix_name=False)]
    ]


def run(command: Density) -> None:
    """Runs ``vergence density``."""
    options.check(command.density)
    if isinstance(command.density, DensityFit):
        return _fit(command.density)
    verb = command.density
    out = verb.out or Path(f"{WRITTEN[type(verb)]}-{options.stem(verb.source)}.csv")
    print(f"wrote {counted(_write(verb, out), 'row')} to {out}")
    print(f"next: vergence density {NEXT[type(verb)]} {shlex.quote(str(verb.model))} {shlex.quote(str(verb.source))}")


def _fit(command: DensityFit) -> None:
    from vergence.data.arrays import read_column, read_pairs
    from vergence.runs import density
    from vergence.utils.terminal import table

    settings = {"device": command.device, **dict(map(options.parse, command.set))}
    groups, order = (None if name is None else read_column(command.pairs, name) for name in (command.groups, command.ordered))
    drop = [*command.drop, *(name for name in (command.groups, command.ordered) if name)]
    pairs = read_pairs(command.pairs, command.target, command.context, drop, command.id)
    if pairs.roles is not None:
        print(pairs.roles)
    verb = "replaced" if command.out.exists() else "wrote"
    also: dict[str, Any] = {"groups": groups, "order": order, "seconds": command.seconds}
    result = density.fit_density(
        pairs, command.model, command.out, settings=settings, holdout=command.holdout, seed=command.seed, **also
    )
    print(f"{result.model}: {result.train} pairs in {result.seconds:.1f} s")
    if (found := result.selection) is not None:
        compared = [list(row) for row in zip(*found.table().values(), strict=True)]
        words = {"log_density": "log-density", "coverage": "inside 90%", "width": "width of 90%"}
        head = ["", *(words.get(name, name) for name in list(found.table())[1:])]
        table("models on rows that they have not seen; log-density in nats, larger is better", head, compared)
        print(found.sentence)
    elif result.scores:
        rows = [[name, *scores.values()] for name, scores in result.scores.items()]
        titles = {"log_density": "log-density", "error": "standard error"}
        head = ["", *(titles.get(name, name) for name in next(iter(result.scores.values())))]
        table(f"{result.test} pairs held out; log-density in nats, larger is better", head, rows)
        print(_who_is_ahead(result.ahead))
    elif command.holdout > 0:
        few = "1 held-out pair is" if result.test == 1 else f"{result.test} held-out pairs are"
        _warn(f"{few} too few to evaluate the density; it is not evaluated")
    if columns := result.few_values:
        where = f"{', '.join(columns)} {'takes' if len(columns) == 1 else 'take'} few different values"
        _warn(
            f"{where}: a density of classes or counts has no upper limit, and such log-densities mean little; "
            "a classifier suits them"
        )
    print(f"{verb} {command.out}; next: vergence density predict {shlex.quote(str(command.out))} CONTEXTS")


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _who_is_ahead(ahead: dict[str, tuple[float, float]]) -> str:
    """Returns by how much the model's held-out log-density is above or below that of its best control, in words."""
    best = min(ahead, key=lambda name: ahead[name][0])
    lead, error = ahead[best]
    distance = f"{abs(lead):.2f} nats a pair {'above' if lead >= 0 else 'below'} {best}"
    return f"the model's log-density is {distance} (standard error {error:.2f}); a right density has 50 and 90 % inside"


def _write(command: DensityPredict | DensitySample | DensityLogProb, out: Path) -> int:
    """Writes what a fitted density says of contexts or pairs; returns the number of rows."""
    from vergence.data.arrays import read_known
    from vergence.mixtures import load
    from vergence.runs import density

    model = load(command.model)
    columns: tuple[list[str], list[str]] = getattr(model, "columns_", ([], []))
    pairs = read_known(command.source, columns, getattr(model, "ids_", []), paired=isinstance(command, DensityLogProb))
    if isinstance(command, DensityLogProb):
        return density.log_prob(model, pairs, out)
    if isinstance(command, DensityPredict):
        return density.predict(model, pairs, out, level=command.level)
    return density.sample(model, pairs, out, n=command.n, seed=command.seed)
