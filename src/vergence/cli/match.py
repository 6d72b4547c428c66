"""``vergence pairs fit`` and ``vergence match``."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.utils.checks import expect

if TYPE_CHECKING:
    from vergence.decide.matching import Matches


COLUMNS = ("context", "best", "score", "p_value", "claim", "answer", "candidates")  # of a table without rows


@dataclass(kw_only=True)
class Pairs:
    """Fit what match needs to true pairs of vectors of any encoders; a part of them calibrates."""

    verb: Annotated[Positional[Literal["fit"]], arg(metavar="fit", help="What to do with the pairs.")]
    pairs: Annotated[Positional[Path], arg(metavar="PAIRS")]
    """A .npz file with the arrays context and target, one row per pair."""
    out: Annotated[Path, arg(metavar="FILE")] = Path("pairs.safetensors")
    """File to write."""
    by: Literal["density", "cosine"] = "density"
    """Score: log p(target | context) - log p(target), or the cosine of vectors in one space."""
    model: Annotated[Literal["gaussian", "mixture"], arg(help="Density of the pairs.")] = "gaussian"
    components: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 128, or a tenth of the pairs)")] = None
    """Principal components of each side."""
    share: Annotated[float, arg(help="Share of the pairs that calibrate.")] = 0.3
    groups: Annotated[str | None, arg(metavar="ARRAY", help_behavior_hint="(default: near duplicates)")] = None
    """Array in PAIRS of a group of each pair, such as a patient: no group both fits and calibrates."""
    seed: options.Seed = 0
    device: Annotated[Literal["cpu", "cuda"], arg(help="Device to compute on.")] = "cpu"


@dataclass(kw_only=True)
class Match:
    """Find the target of a gallery that belongs to each context, or none, at a stated error rate."""

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """Run folder that was trained on pairs, or the file that pairs fit wrote."""
    contexts: Annotated[Positional[str], arg(metavar="CONTEXTS")]
    """Contexts: of a run any source that train takes; else a .npy file of vectors, or .npz with the array context."""
    gallery: Annotated[Positional[str], arg(metavar="GALLERY")]
    """Targets to choose from, likewise (array target); without the targets of the pairs of the fit."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: matches-CONTEXTS.csv)")] = None
    """File to write: .csv, .parquet or .npz."""
    coverage: Annotated[float, arg(metavar="P")] = 0.9
    """Probability that the candidates hold the match of a context that has one."""
    no_match: Annotated[float, arg(metavar="RATE")] = 0.05
    """Largest share of wrong answers: no match where there is one, and a match where there is none."""
    device: options.Device = "auto"
    trust_code: options.TrustCode = False


def pairs(command: Pairs) -> None:
    """Runs ``vergence pairs``."""
    import numpy as np

    from vergence.data.arrays import read_pairs
    from vergence.decide.matching import Matcher
    from vergence.mixtures import get

    read = read_pairs(command.pairs)
    model = None if command.model == "gaussian" else get(command.model)(random_state=command.seed)
    how: dict[str, Any] = {"by": command.by, "share": command.share, "device": command.device}
    matcher = Matcher(model, n_components=command.components, random_state=command.seed, **how)
    groups = None if command.groups is None else _array(command.pairs, command.groups)
    matcher.fit(read.context, np.asarray(read.target).reshape(len(read.target), -1), groups)
    matcher.save(command.out)
    print(f"{len(matcher.calibration_):,} of {len(read.context):,} pairs calibrate the error rates.\nwrote {command.out}")
    print(f"next: vergence match {shlex.quote(str(command.out))} CONTEXTS GALLERY")


def match(command: Match) -> None:
    """Runs ``vergence match``."""
    from vergence.utils.parts import require_table, write_table

    out = command.out or Path(f"matches-{options.stem(command.contexts)}.csv")
    require_table(out, holds="answer")
    if Path(command.contexts).suffix.lower() in (".npy", ".npz") and not len(_vectors(command.contexts, "context")):
        write_table(out, dict.fromkeys(COLUMNS, ()))
        print(f"0 contexts: nothing to decide.\nwrote 0 rows to {out}")
        return
    found = _matches(command)
    write_table(out, {name: _column(values) for name, values in found.table().items()})
    for sentence in found.sentences:
        print(sentence)
    print(f"wrote {len(found.best):,} rows to {out}\nnext: look at the contexts without a match first")


def _matches(command: Match) -> "Matches":
    rates: dict[str, Any] = {"coverage": command.coverage, "no_match": command.no_match}
    if command.model.is_dir():
        from vergence.learn.runs.run import load

        run = load(command.model, device=command.device, trust_code=command.trust_code)
        return run.match(command.contexts, command.gallery, **rates)
    from vergence.decide.matching import Matcher

    sides = _vectors(command.contexts, "context"), _vectors(command.gallery, "target")
    return Matcher.load(command.model).match(*sides, **rates)


def _vectors(source: str, name: str) -> Any:
    return _array(Path(source), name, "z", "arr_0")


def _array(path: Path, *names: str) -> Any:
    """Returns an array of a file, by the first of some names that is there."""
    from vergence.data.arrays import read_arrays

    expect(path.is_file() and path.suffix.lower() in (".npy", ".npz"), f"a .npy or .npz file of vectors at {path}", "none")
    arrays, there = read_arrays(path, names, 1 << 40)
    key = next((name for name in names if name in arrays), None)
    expect(key is not None, f"the array {names[0]} in {path}", ", ".join(there) or "none")
    return arrays[key]  # type: ignore[index]


def _column(values: Any) -> Any:
    import numpy as np

    return values if values and isinstance(values[0], str) else np.asarray(values)
