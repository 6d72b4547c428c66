"""``vergence density``: fit, predict, sample, score, importance."""

import contextlib
import re
import shlex
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import OmitSubcommandPrefixes, Positional, UseAppendAction, arg, subcommand

from vergence.cli import options
from vergence.utils.checks import counted, expect, in_percent
from vergence.utils.terminal import note, number, table

if TYPE_CHECKING:
    from vergence.data.arrays import Pairs
    from vergence.decide.decisions import Decisions

MODELS = "Model to fit: line, kernel, trees, mixture, mdn, gaussian; auto compares them; see vergence.mixtures."
Columns = Annotated[UseAppendAction[list[str]], arg(metavar="COLUMNS", help_behavior_hint="")]


@dataclass(kw_only=True)
class _OfPairs:
    pairs: Annotated[Positional[Path], arg(metavar="PAIRS")]
    """A .npz file with the arrays context and target, or a table: .csv, .tsv, .parquet, .xlsx, packed or not."""
    model: Annotated[str, arg(metavar="NAME", help=MODELS)] = "auto"
    target: Columns = field(default_factory=list)
    """Columns of a table to predict: a name, several between commas, or FIRST:LAST."""
    context: Columns = field(default_factory=list)
    """Columns to predict from; by default all others that hold numbers, dates or categories."""
    drop: Columns = field(default_factory=list)
    """Columns that are not used."""
    id: Columns = field(default_factory=list)
    """Columns that name the rows: not part of the context, and written next to each answer."""
    category: Columns = field(default_factory=list)
    """Columns that are categories, with any values."""
    number: Columns = field(default_factory=list)
    """Columns that are measurements, though their names look like identifiers."""
    dates: Annotated[UseAppendAction[list[str]], arg(metavar="FORMAT", help_behavior_hint="")] = field(default_factory=list)
    """Format of written dates (%d/%m/%Y, %b %Y, %q %Y). Without it those are read of which only one format is possible."""
    sheet: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Sheet of a workbook; the first by default."""
    groups: Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")] = None
    """Column, or array of a .npz file, of subjects: auto chooses the model for new ones. It is not part of the context."""
    ordered: Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")] = None
    """Column, or array, of times: auto chooses the model for later rows. It is not part of the context."""
    seed: options.Seed = 0


@dataclass(kw_only=True)
class DensityFit(_OfPairs):
    """Fit p(target | context) to pairs and evaluate it on held-out pairs."""

    out: Annotated[Path, arg(help="File to write.")] = Path("density.safetensors")
    weights: Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")] = None
    """Column, or array, of weights of the rows; 2 counts as two rows. It is not part of the context."""
    seconds: Annotated[float | None, arg(metavar="S", help_behavior_hint="")] = None
    """Time after which auto tries no other model."""
    holdout: Annotated[float, arg(help="Share of the pairs that is held out to evaluate a named model; 0 for none.")] = 0.2
    set: Annotated[options.Settings, arg(metavar="NAME=VALUE")] = field(default_factory=list)
    """Setting of the model, NAME=VALUE (n_components=5)."""
    report: Annotated[Path | None, arg(metavar="PAGE.html", help_behavior_hint="(default: none)")] = None
    """Page to write: scenarios, the effect of each column, intervals next to what was observed, calibration."""
    device: Annotated[Literal["cpu", "cuda"], arg(help="Device to compute on.")] = "cpu"
    threads: options.Threads = None


@dataclass(kw_only=True)
class _Use:
    model: Annotated[Positional[Path], arg(metavar="MODEL", help="File that fit wrote.")]
    source: Annotated[Positional[Path], arg(metavar="CONTEXTS")]
    """A .npz file with the array context (and target for score), or a table with the columns used in fit."""
    unknown: Annotated[Literal["gap", "refuse"], arg(help="How to treat a category that fit did not see.")] = "gap"
    sheet: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="", help="Sheet of a workbook.")] = None
    out: options.TableOut = None


@dataclass(kw_only=True)
class DensityPredict(_Use):
    """Write the mean, mode, central interval and effective number of modes of the target for each context.

    The columns are TARGET_mean, TARGET_mode, TARGET_low, TARGET_high and, of mixtures, answers. With --if it prints the answer
    for one row that you describe.
    """

    source: Annotated[Positional[Path | None], arg(metavar="CONTEXTS")] = None  # type: ignore[assignment]
    """A .npz file with the array context, or a table with the columns used in fit."""
    given: Annotated[options.Settings, arg(name="if", metavar="COLUMN=VALUE")] = field(default_factory=list)
    """Predict one row with these values of columns, several between commas; columns without one are gaps."""
    level: Annotated[float, arg(help="Probability of the interval.")] = 0.9


@dataclass(kw_only=True)
class DensitySample(_Use):
    """Write samples of each context's targets."""

    n: Annotated[int, arg(help="Samples per context.")] = 10
    seed: options.Seed = 0


@dataclass(kw_only=True)
class DensityScore(_Use):
    """Write how anomalous each target is given its context, next to the columns of the table; flag rows at a stated error rate.

    The p-values are ranks among rows that were held out of the fit. Rows of the fit itself are excluded.
    """

    fdr: Annotated[float, arg(help="Largest share of false alarms among the flags, on average.")] = 0.1


@dataclass(kw_only=True)
class DensityImportance(_OfPairs):
    """Find the context columns that matter: the log-density that is lost without each. Auto chooses once, with all columns."""

    out: Annotated[Path, arg(help="Table to write.")] = Path("importance.csv")


VERBS = {
    "fit": DensityFit,
    "predict": DensityPredict,
    "sample": DensitySample,
    "score": DensityScore,
    "importance": DensityImportance,
}
WRITTEN = {DensityPredict: "predictions", DensitySample: "samples", DensityScore: "scores"}  # names of files
NAMED = 4  # targets of a sentence
TITLE = "Held-out log-density (nats per row; larger is better)"
SHOWN = {"log_density": "nats", "error": "±", "r2": "R2", "coverage": "in 90 %", "seconds": "seconds", "left": "left out"}
NEXT = {DensityPredict: "sample", DensitySample: "predict"}  # what else can be asked


@dataclass(kw_only=True)
class Density:
    """Fit a density p(target | context) to a table; predict and sample with it; find anomalies and the columns that matter."""

    density: OmitSubcommandPrefixes[
        Annotated[DensityFit, subcommand("fit", prefix_name=False)]
        | Annotated[DensityPredict, subcommand("predict", prefix_name=False)]
        | Annotated[DensitySample, subcommand("sample", prefix_name=False)]
        | Annotated[DensityScore, subcommand("score", prefix_name=False)]
        | Annotated[DensityImportance, subcommand("importance", prefix_name=False)]
    ]


def run(command: Density) -> None:
    """Runs ``vergence density``."""
    options.check(command.density)
    if isinstance(command.density, DensityFit):
        return _fit(command.density)
    if isinstance(command.density, DensityImportance):
        return _importance(command.density)
    verb = command.density
    if isinstance(verb, DensityPredict) and verb.given:
        return _scenario(verb)
    expect(bool(verb.source), "a file of contexts, or --if COLUMN=VALUE", "neither", "name one")
    out = verb.out or Path(f"{WRITTEN[type(verb)]}-{options.stem(verb.source)}.csv")
    sentences, rows = _write(verb, out)
    print(*sentences, f"wrote {counted(rows, 'row')} to {out}", sep="\n")
    also = f"vergence density {NEXT.get(type(verb))} {shlex.quote(str(verb.model))} {shlex.quote(str(verb.source))}"
    print(f"next: {also if type(verb) in NEXT else f'open {out}'}")


def _pairs(command: _OfPairs) -> "tuple[Pairs, dict[str, Any]]":
    """Reads pairs, and the groups, times and weights of their rows; prints what the columns are taken for."""
    import numpy as np

    from vergence.data.arrays import read_pairs

    names = ("target", "context", "drop", "groups", "ordered", "category", "number", "dates", "sheet")
    how: dict[str, Any] = {name: getattr(command, name) for name in names}
    pairs = read_pairs(command.pairs, ids=command.id, weights=getattr(command, "weights", None), **how)
    for text in ([] if pairs.roles is None else [str(pairs.roles)]) + list(pairs.notes):
        note(text)
    if (gaps := int(np.isnan(pairs.context).any(1).sum())) > 0:
        where = f"gaps in the context of {gaps:,} of {len(pairs.context):,} rows"
        note(where + "; Gaussians and mixtures integrate over them" * (command.model in ("auto", "gaussian", "mixture")))
    also = {"groups": pairs.groups, "order": pairs.order, "sample_weight": pairs.weights}
    return pairs, {key: values for key, values in also.items() if values is not None}


def _importance(command: DensityImportance) -> None:
    from vergence import mixtures
    from vergence.tables.models import named_model
    from vergence.utils.parts import write_table

    pairs, also = _pairs(command)
    if command.model == "auto":
        found = mixtures.choose(pairs.context, pairs.target, random_state=command.seed, **also)
        model, name = found.model, found.name
    else:
        model, name = named_model(*_named(command.model, {"random_state": command.seed})), command.model
    result = mixtures.importance(model, pairs.context, pairs.target, names=pairs.columns[0], **also)
    rows = [list(row) for row in zip(*result.columns.values(), strict=True)]
    print(f"{rows[0][0]} matters most: without it {name} loses {rows[0][1]:.2f} ± {rows[0][2]:.2f} nats per row.")
    table("Loss on held-out rows without each column (nats per row)", ["column", "nats", "±"], rows)
    write_table(command.out, {key: list(values) for key, values in result.columns.items()})
    target = f" --target {shlex.quote(','.join(command.target))}" if command.target else ""
    print(f"wrote {command.out}\nnext: vergence density fit {shlex.quote(str(command.pairs))}{target} --context COLUMNS")


def _fit(command: DensityFit) -> None:
    from vergence.tables import models as density

    settings = {"device": command.device, **dict(map(options.parse, command.set))}
    pairs, also = _pairs(command)
    verb = "replaced" if command.out.exists() else "wrote"
    also |= {name: getattr(command, name) for name in ("seconds", "report", "holdout", "seed")}
    model, settings = _named(command.model, settings)
    result = density.fit_density(pairs, model, command.out, settings=settings, **also)
    rows, found = counted(result.train, "row"), result.selection
    fitted = f"Fitted{'' if found else f' {command.model}'} to {rows} in {result.seconds:.1f} s."
    if found is not None:
        print(f"{found.sentence}\n{fitted}")
        left = [name for name in SHOWN if any(value != "" for value in found.table()[name])]
        compared = [list(row) for row in zip(*(_cells(name, found.table()[name]) for name in ("model", *left)), strict=True)]
        table(TITLE, ["", *(SHOWN[name] for name in left)], compared)
    elif result.scores:
        print(f"{_comparison(result.ahead)}\n{fitted} {counted(result.test, 'row')} held out.")
        compared = [[name, *(_cells(key, [x])[0] for key, x in scores.items())] for name, scores in result.scores.items()]
        table(TITLE, ["", *(SHOWN.get(name, name) for name in next(iter(result.scores.values())))], compared)
    else:
        print(fitted)
        if command.holdout > 0:
            _warn(f"{counted(result.test, 'held-out row')}: too few to evaluate the density")
    for text in result.notes:
        _warn(text)
    if columns := result.few_values:
        where = f"few different values in {', '.join(columns)}"
        _warn(f"{where}: log-densities of classes or counts have no upper limit and mean little; use a classifier")
    if command.report is not None:
        print(f"wrote {command.report}")
    print(f"{verb} {command.out}\nnext: vergence density predict {shlex.quote(str(command.out))} CONTEXTS")


def _named(model: str, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns a model's name and settings, also of one that is called as in the table: mixture of 3."""
    of = re.fullmatch(r"mixture[ _]of[ _](\d+)", model)
    return (model, settings) if of is None else ("mixture", {"n_components": int(of[1]), **settings})


def _cells(name: str, values: Sequence[Any]) -> list[Any]:
    """Returns a column of the table, with the shares inside intervals in percent."""
    share = SHOWN.get(name, name).startswith("in ")
    return [in_percent(round(x, 3)) if share and isinstance(x, float) else x for x in values]


def _warn(message: str) -> None:
    note(message, "warning")


def _comparison(ahead: dict[str, tuple[float, float]]) -> str:
    """Returns by how much the model's held-out log-density is above or below that of its best baseline, in words."""
    best = min(ahead, key=lambda name: ahead[name][0])
    lead, error = ahead[best]
    how = "better" if lead >= 0 else "worse"
    return f"The model is {abs(lead):.2f} ± {error:.2f} nats per row {how} than the baseline {best}."


def _scenario(command: DensityPredict) -> None:
    from vergence.mixtures import load
    from vergence.tables import models as density

    expect(command.source is None and command.out is None, "only --if", "a file too", "leave one out")
    parts = [part.partition("=") for text in command.given for part in re.split(r",(?=[^,=]+=)", text)]
    wrong = next(("".join(part) for part in parts if not part[1]), None)
    expect(wrong is None, "--if COLUMN=VALUE", wrong, "give a value")
    model, notes, given = load(command.model), list[str](), {name.strip(): value.strip() for name, _, value in parts}
    with _warned():
        found = density.scenario(model, given, command.level, unknown=command.unknown, notes=notes)
    for text in notes:
        note(text)
    for name in model._names()[1]:
        mean, mode, low, high = (number(found[f"{name}_{part}"]) for part in ("mean", "mode", "low", "high"))
        print(f"{name} is {mean} on average, and between {low} and {high} with {in_percent(command.level)} probability.")
        if mode != mean:
            print(f"The most probable value of {name} is {mode}.")
    if (several := found.get("answers", 1)) >= 1.5:
        print(f"There are about {several:.0f} different answers.")
    print(_condition(model, command.level))


def _condition(model: Any, level: float) -> str:
    """Returns what intervals promise."""
    known = hasattr(model, "held_out_pit_")
    holds = "rows come from the source of the fit" if known else "the model is right (no rows were held out)"
    return f"On average {in_percent(level)} of intervals contain the value, if {holds}."


@contextlib.contextmanager
def _warned() -> Iterator[None]:
    """Prints the warnings of models as those of the command, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for message in dict.fromkeys(str(one.message) for one in caught):
        _warn(message)


def _write(command: DensityPredict | DensitySample | DensityScore, out: Path) -> tuple[list[str], int]:
    """Writes the answers of a fitted density for contexts or pairs; returns what they are, and the number of rows."""
    from vergence.data.arrays import read_for_model
    from vergence.data.table_files import listed
    from vergence.mixtures import load
    from vergence.tables import models as density

    model = load(command.model)
    columns: tuple[list[str], list[str]] = getattr(model, "columns_", ([], []))
    assert command.source is not None
    paired = isinstance(command, DensityScore)
    keep = (".csv" if out.suffix == ".csv" else ".parquet") if paired else ""  # columns as texts, or as numbers
    how: dict[str, Any] = {"paired": paired, "unknown": command.unknown, "sheet": command.sheet, "keep": keep}
    pairs = read_for_model(command.source, columns, getattr(model, "ids_", []), **how)
    for text in pairs.notes:
        note(text)
    with _warned():
        if isinstance(command, DensityScore):
            found = density.score_pairs(model, pairs, out, fdr=command.fdr)
            return _scored(found), found.rows
        targets, rows = listed(model._names()[1], NAMED), counted(len(pairs.context), "row")
        if isinstance(command, DensityPredict):
            n = density.predict(model, pairs, out, level=command.level)
            return [f"{targets} predicted for {rows}.", _condition(model, command.level)], n
        n = density.sample(model, pairs, out, n=command.n, seed=command.seed)
        many = f"{counted(command.n, 'sample')} of {targets} for each of {rows}."
        return [many, "They are like new values, if rows come from the source of the fit."], n


def _scored(found: "Decisions") -> list[str]:
    from vergence.decide.decisions import SHIFTED

    if not found.total:
        return found.sentences
    if found.shift is None:
        return ["No p-values: the model has no held-out rows. Fit it without --holdout 0."]
    like = [f"Overall, the rows are like the training rows (p = {found.shift:.2g})."] if found.shift > SHIFTED else []
    return [*found.sentences, *like]
