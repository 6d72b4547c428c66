"""``vergence advise``."""

import shlex
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.data.config import DataConfig, ViewConfig, default_flip, default_views
from vergence.utils.checks import did_you_mean


@dataclass(kw_only=True)
class Advise:
    """Advise before training: what to start with, what the views change, and what they share that they should not."""

    data: Annotated[Positional[str], arg(metavar="DATA", help=options.SOURCES)]
    out: Annotated[Path, arg(help="Folder for advice.json and report.html.")] = Path("runs/advice")
    labels: Annotated[bool, arg(help="Use the labels of the data, if it has any.")] = True
    components: Annotated[int | None, arg(metavar="K", help_behavior_hint="(default: 32, or half of the directions)")] = None
    """Directions that a representation keeps."""
    draws: Annotated[int | None, arg(metavar="M", help="Views per item.", help_behavior_hint="(default: 40,000 in all)")] = None
    views: options.ViewsOption = None
    size: Annotated[int | None, arg(metavar="PIXELS", help="Side of images, in pixels.", help_behavior_hint="")] = None
    limit: Annotated[int | None, arg(metavar="N", help="Use at most so many items.", help_behavior_hint="")] = None
    set: Annotated[options.Settings, arg(metavar="NAME=VALUE")] = field(default_factory=list)
    """Strength of a view's operation, NAME=VALUE (blur=0, crop=(0.5,1), noise=0.1), or a field of the data (holdout=0.1)."""
    seed: options.Seed = 0
    data_root: Annotated[options.DataRoot, arg(help_behavior_hint="(default: data)")] = None
    download: Annotated[bool, arg(help=options.described("download"))] = False
    device: options.Device = "auto"
    threads: options.Threads = None


def advise(command: Advise) -> None:
    """Runs ``vergence advise``."""
    data, views = _configs(command)
    from vergence.advice.advise import advise_on
    from vergence.advice.page import show_advice

    advice = advise_on(
        data,
        views,
        out=command.out,
        labels=command.labels,
        n_components=command.components,
        n_draws=command.draws,
        seed=command.seed,
        device=command.device,
        command=shlex.join(["vergence", *sys.argv[1:]]),
    )
    show_advice(advice)
    if advice.facts.skipped:
        print(f"{advice.facts.skipped:,} could not be read: {command.out / 'skipped.csv'}")
    print(f"wrote {command.out / 'report.html'}")
    print(f"next: vergence train {shlex.quote(command.data)}")


def _configs(command: Advise) -> tuple[DataConfig, ViewConfig]:
    given = {"root": command.data_root, "download": command.download, "size": command.size, "limit": command.limit}
    data: dict[str, Any] = {"source": command.data, **given}
    views: dict[str, Any] = {"flip": default_flip(command.data), **default_views(command.views or "features")}
    strengths = [f.name for f in fields(ViewConfig)]
    for name, value in map(options.parse, command.set):
        if name in strengths:
            views[name] = value
        elif name in {f.name for f in fields(DataConfig)} - data.keys():
            data[name] = value
        else:
            hint = did_you_mean(name, strengths) or f"choose from {', '.join(strengths)}"
            raise ValueError(f"expected --set with the strength of an operation, found {name}={value}; {hint}")
    return DataConfig(**data), ViewConfig(**views)
