"""``vergence train``."""

import shlex
import sys
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.data.config import default_views
from vergence.learn.training import recipes
from vergence.utils import terminal
from vergence.utils.checks import expect
from vergence.utils.terminal import is_first_process

if TYPE_CHECKING:
    from vergence.learn.runs.run import Run

RECIPES = "Settings to start from; vergence list recipes names them."
SHARD = "Train part I of N of a closed form such as patches, in the folder --out; vergence merge joins the parts."
DRY_RUN = "Print what would run, with an estimate of time and memory; trains and writes nothing."
SET = "Any other setting, NAME=VALUE: an option of the objective (nu=1) or a field of the run (blur=0.5, clip=1)."
RECIPE = "(default: patches for images, gmje_small for pairs, NAME_small with --objective NAME, else vje_small)"


@dataclass(kw_only=True)
class _Train:
    data: Annotated[Positional[str | None], arg(metavar="[DATA]", help=options.SOURCES, help_behavior_hint="")] = None
    out: Annotated[Path | None, arg(metavar="FOLDER", help="Run folder to write.", help_behavior_hint="")] = None
    resume: Annotated[bool, arg(help="Resume the run in --out (or given instead of DATA) from its last checkpoint.")] = False
    trust_code: options.TrustCode = False
    recipe: Annotated[str | None, arg(metavar="NAME", help=RECIPES, help_behavior_hint=RECIPE)] = None
    views: options.ViewsOption = None
    dry_run: Annotated[bool, arg(help=DRY_RUN)] = False
    shard: Annotated[str | None, arg(metavar="I/N", help=SHARD, help_behavior_hint="")] = None
    set: Annotated[options.Settings, arg(metavar="NAME=VALUE", help=SET)] = field(default_factory=list)


Train = make_dataclass(
    "Train",
    [(name, kind, field(default=default)) for name, kind, default in map(options.setting, options.SETTINGS)],
    bases=(_Train,),
    kw_only=True,
    namespace={"__doc__": "Train an encoder and a density over its embeddings; writes a run folder.", "__module__": __name__},
)


def train(command: Any) -> None:
    """Runs ``vergence train``; exits with 128 + signal when interrupted."""
    out, source = command.out, command.data
    if command.resume and out is None and source is not None:
        out, source = Path(source), None  # vergence train --resume RUN
    if out is None and source is None and not command.resume and command.init is None:
        raise ValueError("name the data: vergence train DATA")
    if out is None and command.resume:
        raise ValueError("name the run folder to continue: vergence train --resume RUN")
    if out is None:
        out = Path("runs") / options.stem(source or command.init)
    settings, also = options.chosen(command), options.parse_settings(command.set)
    if command.views is not None:
        settings = default_views(command.views) | settings
    if twice := sorted(settings.keys() & also.keys()):
        raise ValueError(f"{twice[0]} is given twice, by --set and by its own option; leave one out")
    if not command.resume:
        recipes.require_known(command.recipe, settings | also)
    if command.dry_run:
        return _plan(source, out, command, settings | also)
    if command.shard is not None:
        return _shard(source, out, command, settings | also)
    from vergence.learn.runs.train import collapse_of
    from vergence.learn.runs.train import train as run_training
    from vergence.learn.training.loop import Interrupted
    from vergence.learn.training.processes import NotStarted, in_processes

    try:
        given = {"recipe": command.recipe, "resume": command.resume, "trust_code": command.trust_code}
        run = run_training(source, out=out, **given, **settings, **also)
    except NotStarted as found:
        if found.nodes > 1:
            raise
        return in_processes(sys.argv[1:], found.devices, out)
    except Interrupted as stop:
        if is_first_process():
            print(f"{stop}; to resume: vergence train --resume {shlex.quote(str(out))}", file=sys.stderr)
        sys.exit(128 + stop.signum)
    if is_first_process():
        print(f"{_done(run)}\n{_data(run)}\nnext: {_next(run)}")
        if (collapse := collapse_of(run)) is not None:
            terminal.note(f"the training ended, but {collapse}", "warning")


def _plan(source: str | None, out: Path, command: Any, settings: dict[str, Any]) -> None:
    from vergence.learn.runs.train import plan

    expect(not command.resume, "--dry-run of a new run", "--resume", "leave one out")
    steps = plan(source, out=out, recipe=command.recipe, trust_code=command.trust_code, **settings)
    print(terminal.wording("\n".join(steps)))
    print("next: the same command without --dry-run trains")


def _shard(source: str | None, out: Path, command: Any, settings: dict[str, Any]) -> None:
    from vergence.learn.runs.train import train_shard
    from vergence.utils.parts import Shard

    expect(not command.resume and source is not None, "--shard with DATA", "--resume", "give the same command again to resume")
    shard = Shard.parse(command.shard)
    part = train_shard(source, shard, out=out, recipe=command.recipe, trust_code=command.trust_code, **settings)
    print(f"wrote the sums of part {shard} to {part}")
    print(f"next, with all {shard.of} parts: vergence merge {shlex.quote(str(out))} --out RUN")


def _done(run: "Run") -> str:
    """Returns what was trained and which weights it started from."""
    weights, model, out = run.folder.metadata.weights, run.folder.config.model, run.folder.path
    if model.freeze:
        what = f"Wrote {out} with a frozen encoder"
    elif model.encoder.closed_form and (weights is None or weights.source == "random"):
        what = f"Trained {out} in closed form{f', then with {model.objective}' if model.encoder.takes_steps else ''}"
    else:
        start = "" if weights is None else f" from {'random weights' if weights.source == 'random' else weights.in_words()}"
        what = f"Trained {out}{start}{'' if model.distill is None else ', after distillation from a closed form'}"
    return f"{what}: {run.folder.metadata.n_train:,} items."


def _next(run: "Run") -> str:
    """Returns the commands that use a run; of a run on pairs with p(target | context) the one that scores targets."""
    from vergence.learn.objectives.core import ConditionalObjective
    from vergence.learn.runs.detector import FILE

    trust = " --trust-code" if run.folder.config.model.outside else ""
    folder = shlex.quote(str(run.folder.path))
    judged = run.folder.metadata.kind == "pairs" and isinstance(run.method.objective, ConditionalObjective)
    score = f"vergence score {folder}{' NEW_PAIRS --pairs' if judged else ' NEW'}{trust} --out scores.csv"
    return f"vergence evaluate {folder}{trust}" + (f"\n  or: {score}" if (run.folder.path / FILE).exists() else "")


def _data(run: "Run") -> str:
    about = run.folder.metadata
    calibrate = f"{about.n_calibration:,} to calibrate, " if about.n_calibration else ""
    skipped = f"\n{about.skipped:,} could not be read: {run.folder.path / 'skipped.csv'}" if about.skipped else ""
    return f"Held out: {calibrate}{about.n_test:,} to test.{skipped}"
