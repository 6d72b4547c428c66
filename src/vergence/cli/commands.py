"""The command line. It loads torch only when a command runs, prints one line for an error, and exits with 2."""

import ast
import difflib
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, UseAppendAction, arg

from vergence.cli import density, sample
from vergence.utils.version import __version__

__all__ = ["main"]

FROM_RECIPE = "(default: the recipe's)"


@dataclass(kw_only=True)
class Demo:
    """Train, evaluate and score on scikit-learn's digits in about a minute, and write a report."""

    out: Path = Path("runs/demo")
    """Run folder; a demo's run that is there is replaced."""
    seed: int = 0
    """Seed of everything that is random."""


@dataclass(kw_only=True)
class Train:
    """Train an encoder and a density over its embeddings; writes a run folder."""

    data: Annotated[Positional[str | None], arg(metavar="DATA", help_behavior_hint="")] = None
    """digits, mnist, fashion_mnist, cifar10, cifar100, stl10; a folder of images; a .npy or .npz file."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Run folder to write."""
    resume: bool = False
    """Go on with the run in --out (or in DATA's place) from its last checkpoint."""
    recipe: str = "vje_small"
    """Settings to start from; see vergence.training.recipes."""
    objective: Annotated[str | None, arg(metavar="NAME", help_behavior_hint=FROM_RECIPE)] = None
    """Objective, or package.module:Class for one of your own."""
    encoder: Annotated[str | None, arg(metavar="NAME", help_behavior_hint=FROM_RECIPE)] = None
    """small, mlp, resnet18, resnet34, resnet50 (-cifar or -imagenet for the stem), timm:NAME."""
    epochs: Annotated[int | None, arg(metavar="N", help_behavior_hint=FROM_RECIPE)] = None
    """Passes over the data."""
    batch_size: Annotated[int | None, arg(metavar="N", help_behavior_hint=FROM_RECIPE)] = None
    """Pairs in a step, all processes together."""
    optimizer: Annotated[
        Literal["sgd", "adamw", "lars"] | None, arg(metavar="{sgd|adamw|lars}", help_behavior_hint=FROM_RECIPE)
    ] = None
    """Optimizer."""
    lr: Annotated[float | None, arg(metavar="RATE", help_behavior_hint=FROM_RECIPE)] = None
    """Peak learning rate."""
    size: Annotated[int | None, arg(metavar="PIXELS", help_behavior_hint=FROM_RECIPE)] = None
    """Side of the images that the encoder sees, in pixels."""
    limit: Annotated[int | None, arg(metavar="N", help_behavior_hint=FROM_RECIPE)] = None
    """Train on at most so many items."""
    keep_classes: Annotated[tuple[int, ...] | None, arg(metavar="LABEL [LABEL ...]", help_behavior_hint="")] = None
    """Train on these labels only; the others are the anomalies of the evaluation."""
    set: Annotated[UseAppendAction[list[str]], arg(metavar="NAME=VALUE")] = field(default_factory=list)
    """Any other setting, NAME=VALUE: an option of the objective (nu=1) or a field of the run (blur=0.5, clip=1)."""
    seed: Annotated[int | None, arg(metavar="N", help_behavior_hint=FROM_RECIPE)] = None
    """Seed of everything that is random."""
    precision: Annotated[
        Literal["auto", "fp32", "bf16", "fp64"] | None, arg(metavar="{auto|fp32|bf16|fp64}", help_behavior_hint=FROM_RECIPE)
    ] = None
    """Arithmetic; auto takes bfloat16 where the hardware has it."""
    device: Annotated[Literal["auto", "cpu", "cuda"] | None, arg(metavar="{auto|cpu|cuda}", help_behavior_hint=FROM_RECIPE)] = (
        None
    )
    """Where to compute."""
    devices: Annotated[int | None, arg(metavar="N", help_behavior_hint=FROM_RECIPE)] = None
    """Processes, one a device."""
    data_root: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint="(default: data)")] = None
    """Folder of torchvision's data sets."""
    download: bool = False
    """Let torchvision download what is missing."""
    strict: bool = False
    """Refuse unreadable images; stop when the embedding collapses."""


@dataclass(kw_only=True)
class Evaluate:
    """Evaluate a run beside its controls; writes evaluation.json and prints a table."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    probes: bool = True
    """Fit linear probes."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute."""


@dataclass(kw_only=True)
class _Use:
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    images: Annotated[Positional[str], arg(metavar="IMAGES")]
    """Anything that train takes as data; of a built-in name the test part (cifar10:train for the other)."""
    out: Path
    """File to write: .npz, .csv or .parquet."""
    data_root: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint="(default: the run's)")] = None
    """Folder of torchvision's data sets."""
    batch_size: int = 256
    """Items at a time."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute."""


class Embed(_Use):
    """Write embeddings, posterior means, variances and log-densities."""


class Score(_Use):
    """Write how anomalous each item is; larger is more anomalous."""


@dataclass(kw_only=True)
class Advise:
    """Before training: would joint embedding or reconstruction suit these data and augmentations?"""

    data: Annotated[Positional[str], arg(metavar="DATA")]
    """digits, mnist, fashion_mnist, cifar10, cifar100, stl10; a folder of images; a .npy or .npz file."""
    out: Path = Path("runs/advice")
    """Folder for advice.json and report.html."""
    labels: bool = True
    """Use the data's labels; without them the answer is often that one cannot tell."""
    components: Annotated[int | None, arg(metavar="K", help_behavior_hint="(default: 32, or half of the directions)")] = None
    """Directions that a representation keeps."""
    draws: Annotated[int | None, arg(metavar="M", help_behavior_hint="(default: 200,000 in all)")] = None
    """Views of each item."""
    size: Annotated[int | None, arg(metavar="PIXELS", help_behavior_hint="")] = None
    """Side of the images, in pixels."""
    limit: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Look at so many items at most."""
    set: Annotated[UseAppendAction[list[str]], arg(metavar="NAME=VALUE")] = field(default_factory=list)
    """Strength of a view's operation, NAME=VALUE (blur=0, crop=(0.5,1), noise=0.1), or a field of the data (holdout=0.1)."""
    seed: int = 0
    """Seed of everything that is random."""
    data_root: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint="(default: data)")] = None
    """Folder of torchvision's data sets."""
    download: bool = False
    """Let torchvision download what is missing."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute."""


@dataclass(kw_only=True)
class Report:
    """Write a run's report: one interactive page that works offline."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""


@dataclass(kw_only=True)
class Bench:
    """Measure throughput of the bare encoder step and of the whole training step, and their ratio."""

    what: Positional[Literal["step", "embed", "objective"]] = "step"
    """The training step; embedding against the bare forward pass; or an objective's share of a step."""
    encoder: str = "small"
    """Encoder, as for train."""
    objective: str = "vje"
    """Objective; all measures every one of them against one step."""
    dim: int = 128
    """Features of the embeddings that an objective is measured on."""
    size: int = 32
    """Side of the images."""
    batch_size: int = 256
    """Images in a step; two views each."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute."""
    rounds: int = 5
    """Rounds in which the two take turns; medians are printed."""
    out: Path | None = None
    """Ledger file (.jsonl) to add the row to."""


def main(arguments: list[str] | None = None) -> None:
    """Runs a command; exits with 0, 2 for what the user can mend, or 128 + signal when stopped."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["--version"]:
        print(f"vergence {__version__}")
        return
    commands: dict[str, Callable[..., Any]] = {
        "demo": Demo,
        "train": Train,
        "evaluate": Evaluate,
        "embed": Embed,
        "score": Score,
        "sample": sample.Sample,
        "advise": Advise,
        "density": density.Density,
        "report": Report,
        "bench": Bench,
    }
    command = tyro.extras.subcommand_cli_from_dict(
        commands, prog="vergence", description="Probabilistic joint-embedding learning.", args=arguments
    )
    try:
        RUN[type(command)](command)
    except (ValueError, OSError) as error:
        _stop(error)
    except KeyboardInterrupt:
        sys.exit(130)


def _stop(error: Exception) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":
        text = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else str(error)
        print("error: " + " ".join(text.split()), file=sys.stderr)
    sys.exit(2)


def _train(command: Train) -> None:
    from vergence.runs.train import train
    from vergence.training.loop import Interrupted

    out, source = command.out, command.data
    if command.resume and out is None and source is not None:
        out, source = Path(source), None  # vergence train --resume RUN
    if out is None:
        raise ValueError("name the run folder to write: --out runs/NAME")
    named = ("objective", "encoder", "epochs", "batch_size", "optimizer", "lr", "size", "limit", "keep_classes", "seed")
    settings = {name: getattr(command, name) for name in (*named, "precision", "device", "devices")}
    settings |= {"root": command.data_root, "download": command.download or None, "strict": command.strict or None}
    settings = {name: value for name, value in settings.items() if value is not None}
    also = _settings(command.set)
    if twice := sorted(settings.keys() & also.keys()):
        raise ValueError(f"{twice[0]} is given twice, by --set and by its own option; leave one out")
    settings |= also
    try:
        run = train(source, out=out, recipe=command.recipe, resume=command.resume, **settings)
    except Interrupted as stop:
        print(f"{stop}; go on with: vergence train --resume {shlex.quote(str(out))}", file=sys.stderr)
        sys.exit(128 + stop.signum)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"trained {run.folder.path}; next: vergence evaluate {shlex.quote(str(run.folder.path))}")


def _settings(pairs: list[str]) -> dict[str, Any]:
    """Reads NAME=VALUE settings; a name that is no field of the run is an option of the objective."""
    from dataclasses import fields

    from vergence.data.config import DataConfig, ViewConfig
    from vergence.training.config import FitConfig, ModelConfig

    known = {f.name for part in (DataConfig, ViewConfig, ModelConfig, FitConfig) for f in fields(part)}
    settings: dict[str, Any] = {"options": {}}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name in ("options", "source"):
            raise ValueError(f"expected --set NAME=VALUE with the name of one setting, found '{pair}'")
        (settings if name in known else settings["options"])[name] = _value(text)
    return settings if settings["options"] else {k: v for k, v in settings.items() if k != "options"}


def _value(text: str) -> Any:
    words = {"inf": float("inf"), "none": None, "true": True, "false": False}
    if text in words:
        return words[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        return text


def _evaluate(command: Evaluate) -> None:
    from vergence.report.show import show_evaluation
    from vergence.runs.evaluate import evaluate
    from vergence.runs.run import load

    show_evaluation(evaluate(load(command.run, device=command.device), probes=command.probes).to_dict())


def _embed(command: Embed) -> None:
    from vergence.runs.run import load

    run = load(command.run, device=command.device)
    items = run.items(command.images, root=command.data_root)
    rows = run.write_embeddings(items, command.out, batch_size=command.batch_size)
    _say_written(command.out, rows)


def _score(command: Score) -> None:
    from vergence.runs.run import load

    run = load(command.run, device=command.device)
    items = run.items(command.images, root=command.data_root)
    rows = run.write_scores(items, command.out, batch_size=command.batch_size)
    _say_written(command.out, rows)


def _say_written(out: Path, rows: int) -> None:
    skipped = out.with_name(f"{out.name}.skipped.csv")
    print(f"wrote {rows} rows to {out}" + (f"; what could not be read is listed in {skipped}" if skipped.exists() else ""))


def _advise(command: Advise) -> None:
    from dataclasses import fields

    from vergence.data.config import DataConfig, ViewConfig
    from vergence.report.show import show_advice
    from vergence.runs.advise import advise_on

    given = {"root": command.data_root, "download": command.download, "size": command.size, "limit": command.limit}
    also = _settings(command.set)
    also |= also.pop("options", {})  # an unknown name is taken for an objective's option, which advice has none of
    parts: dict[type, dict[str, Any]] = {DataConfig: dict(given, source=command.data), ViewConfig: {}}
    for name, value in also.items():
        part = next((part for part in parts if name in {f.name for f in fields(part)}), None)
        if part is None or name in given:
            known = [f.name for f in fields(ViewConfig)]
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise ValueError(f"expected --set with the strength of an operation, found {name}={value}; {hint}")
        parts[part][name] = value
    if command.seed < 0:
        raise ValueError(f"expected --seed of at least 0, found {command.seed}")
    advice = advise_on(
        DataConfig(**parts[DataConfig]),
        ViewConfig(**parts[ViewConfig]),
        out=command.out,
        labels=command.labels,
        n_components=command.components,
        n_draws=command.draws,
        seed=command.seed,
        device=command.device,
        command=shlex.join(["vergence", *sys.argv[1:]]),
    )
    show_advice(advice.to_dict())
    skipped = (
        f"; {advice.facts['skipped']} files could not be read: {command.out / 'skipped.csv'}" if advice.facts["skipped"] else ""
    )
    print(f"wrote {command.out / 'report.html'}{skipped}")


def _report(command: Report) -> None:
    from vergence.report.page import write_report

    print(f"wrote {write_report(command.run)}")


def _demo(command: Demo) -> None:
    from vergence.runs.demo import demo

    demo(command.out, seed=command.seed)


def _bench(command: Bench) -> None:
    from vergence.runs.bench import bench

    bench(**vars(command))


RUN: dict[type, Callable[[Any], None]] = {
    Demo: _demo,
    Train: _train,
    Evaluate: _evaluate,
    Embed: _embed,
    Score: _score,
    sample.Sample: sample.sample,
    Advise: _advise,
    density.Density: lambda command: density.RUN[type(command.do)](command.do, _value),
    Report: _report,
    Bench: _bench,
}


if __name__ == "__main__":
    main()
