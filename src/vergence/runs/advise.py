"""Advice on a source of data, from opening it to writing the page: ``vergence advise``."""

import dataclasses
import json
import math
from pathlib import Path

import torch

from vergence.data.config import DataConfig, ViewConfig
from vergence.data.sources import Data, open_data
from vergence.linear.advice import FEWEST_ITEMS, AboutData, Advice, advise
from vergence.linear.reading import VECTORS
from vergence.report.advice import write_advice
from vergence.training import build
from vergence.training.folder import require_writable, write_skipped
from vergence.utils.checks import expect, refuse
from vergence.utils.devices import as_device
from vergence.utils.files import explained, replacing
from vergence.utils.version import commit

__all__ = ["advise_on"]


def advise_on(
    data: DataConfig,
    views: ViewConfig,
    *,
    out: Path,
    labels: bool = True,
    features: str = "raw",
    n_components: int | None = None,
    n_draws: int | None = None,
    seed: int = 0,
    device: str = "auto",
    command: str = "",
) -> Advice:
    """Advises on the training part of a source and writes ``advice.json`` and ``report.html``.

    Args:
        data: The source and how it is read.
        views: The augmentation, of images or vectors.
        out: Folder to write.
        labels: Whether the source's labels are used.
        features: See `vergence.linear.advise`: ``raw`` or, of images, ``patches``.
        n_components: See `vergence.linear.advise`.
        n_draws: See `vergence.linear.advise`.
        seed: Seed of everything that is random.
        device: ``auto``, ``cpu`` or ``cuda``.
        command: Command line that reproduces the advice, for the page.

    Returns:
        The advice; `docs/advice.md` lists the fields of ``advice.json``.

    Raises:
        ValueError: The source or the settings are not usable, or ``out`` cannot be written to or holds a run.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "advice"
        >>> advise_on(DataConfig(source="digits", limit=200), ViewConfig(), out=folder, n_draws=4).facts.items
        200
        >>> sorted(path.name for path in folder.iterdir())
        ['advice.json', 'report.html']
    """
    holds_run = (out / "config.json").exists()
    expect(not holds_run, "a folder for the advice", f"that {out} holds a trained run", "choose another --out")
    on = str(as_device(device))
    require_writable(out)  # reported before the work
    opened = _opened(data, views)
    advice = advise(
        opened.train,
        build.make_views(opened, views, build.input_shapes(opened)[0]),
        labels=None if labels else torch.full((len(opened.train),), -1),
        features=features,
        n_components=n_components,
        n_draws=n_draws,
        random_state=seed,
        device=on,
    )
    advice = dataclasses.replace(advice, facts=_facts(advice, opened))
    write_skipped(out / "skipped.csv", opened.skipped)
    settings = {"data": dataclasses.asdict(data), "views": dataclasses.asdict(views), "seed": seed, "commit": commit()}
    path = out / "advice.json"
    with explained(path, "free space, or choose another --out, and repeat the command"), replacing(path) as part:
        part.write_text(json.dumps(advice.to_dict() | settings, indent=1) + "\n", encoding="utf-8")
    write_advice(advice, out / "report.html", name=opened.name, command=command)
    return advice


def _opened(data: DataConfig, views: ViewConfig) -> Data:
    """Returns the data, of which enough are left beside a test part, and which the views suit."""
    opened = open_data(data, double=True)
    pairs = opened.kind == "pairs"
    expect(not pairs, "single items", f"pairs in {data.source}", "they are two views already; train on them")
    changed = {f.name for f in dataclasses.fields(views) if getattr(views, f.name) != getattr(ViewConfig(), f.name)}
    idle = ", ".join(sorted(changed & VECTORS.keys() if opened.kind == "image" else changed - VECTORS.keys()))
    kind = f"operations on {opened.kind}s"
    expect(not idle, kind, f"{idle}, which is no operation on {opened.kind}s", "leave it out")
    left, share = len(opened.train), opened.share
    if left < FEWEST_ITEMS and share and data.limit is None and data.keep_classes is None:
        held_out = f"{left}: of {left + len(opened.test)} items, {100 * share:g} % are held out as a test part"
        refuse(f"at least {FEWEST_ITEMS} items to advise on", held_out, f"give at least {math.ceil(FEWEST_ITEMS / (1 - share))}")
    return opened


def _facts(advice: Advice, opened: Data) -> AboutData:
    """Returns the facts with the source's test part, its unreadable files, and its own names of the classes."""
    facts = dataclasses.replace(advice.facts, part=opened.note, skipped=len(opened.skipped))
    if opened.classes and facts.classes:
        facts = dataclasses.replace(facts, classes=tuple(opened.classes[int(c)] for c in facts.classes))
    return facts
