"""``vergence advise``."""

import shlex
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.data.config import DataConfig, ViewConfig, usual, usual_flip
from vergence.utils.checks import did_you_mean


@dataclass(kw_only=True)
class Advise:
    """Before training: what suits these data and views, and what do the views share that they should not?"""

    data: Annotated[Positional[str], arg(metavar="DATA", help=options.SOURCES)]
    out: Annotated[Path, arg(help="Folder for advice.json and report.html.")] = Path("runs/advice")
    labels: Annotated[bool, arg(help="With --minutes: judge by the data's labels; without them the simple rule stands.")] = True
    components: Annotated[int | None, arg(metavar="K", help_behavior_hint="(default: 32, or half of the directions)")] = None
    """Directions that a representation keeps."""
    draws: Annotated[int | None, arg(metavar="M", help="Views an item.", help_behavior_hint="(default: 200,000 in all)")] = None
    minutes: Annotated[float | None, arg(metavar="M", help_behavior_hint="")] = None
    """Also try the closed form and two networks for so many minutes in all, and rank them."""
    frozen: Annotated[str | None, arg(metavar="ENCODER", help_behavior_hint="")] = None
    """With --minutes: a pretrained network that is at hand, timm:NAME or package.module:factory, to try it, too."""
    weights: Annotated[Path | None, arg(metavar="FILE", help="Weights of --frozen.", help_behavior_hint="")] = None
    views: options.ViewsOption = None
    size: Annotated[int | None, arg(metavar="PIXELS", help="Side of images, in pixels.", help_behavior_hint="")] = None
    limit: Annotated[int | None, arg(metavar="N", help="Use at most so many items.", help_behavior_hint="")] = None
    set: Annotated[options.Settings, arg(metavar="NAME=VALUE")] = field(default_factory=list)
    """Strength of a view's operation, NAME=VALUE (blur=0, crop=(0.5,1), noise=0.1), or a field of the data (holdout=0.1)."""
    seed: options.Seed = 0
    data_root: Annotated[options.DataRoot, arg(help_behavior_hint="(default: data)")] = None
    download: options.Download = False
    device: options.Device = "auto"
    threads: options.Threads = None


def advise(command: Advise) -> None:
    """Runs ``vergence advise``."""
    from vergence.advice.advise import advise_on
    from vergence.advice.candidates import best_first
    from vergence.advice.page import show_advice

    data, views = _configs(command)
    advice = advise_on(
        data,
        views,
        out=command.out,
        labels=command.labels,
        n_components=command.components,
        n_draws=command.draws,
        seed=command.seed,
        device=command.device,
        minutes=command.minutes,
        frozen=command.frozen,
        weights=command.weights,
        command=shlex.join(["vergence", *sys.argv[1:]]),
    )
    show_advice(advice)
    measured = bool(advice.trials) and advice.trials[0].knn is not None  # without labels the simple rule stands
    if advice.trials and not measured and command.labels:
        print("labels make the answer surer: a sub-folder for each class, or an array labels next to images in a .npz file")
    listed = (
        f"; {command.out / 'skipped.csv'} lists {advice.facts.skipped:,} that could not be read" if advice.facts.skipped else ""
    )
    print(f"wrote {command.out / 'report.html'}{listed}")
    best = best_first(advice.trials)[0].command if measured else ""
    print(f"next: {best or f'vergence train {shlex.quote(command.data)}'}")


def _configs(command: Advise) -> tuple[DataConfig, ViewConfig]:
    given = {"root": command.data_root, "download": command.download, "size": command.size, "limit": command.limit}
    data: dict[str, Any] = {"source": command.data, **given}
    views: dict[str, Any] = {"flip": usual_flip(command.data), **usual(command.views or "features")}
    strengths = [f.name for f in fields(ViewConfig)]
    for name, value in map(options.parse, command.set):
        if name in strengths:
            views[name] = value
        elif name in {f.name for f in fields(DataConfig)} - data.keys():
            data[name] = value
        else:
            hint = did_you_mean(name, strengths) or f"known: {', '.join(strengths)}"
            raise ValueError(f"expected --set with the strength of an operation, found {name}={value}; {hint}")
    return DataConfig(**data), ViewConfig(**views)
