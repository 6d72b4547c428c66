"""Advice on a source of data, from opening it to the page: what ``vergence advise`` does."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from vergence.data.config import DataConfig, ViewConfig
from vergence.data.sources import open_data
from vergence.linear.advice.advise import Advice, advise
from vergence.linear.advice.pipeline import VECTORS
from vergence.report.advice import write_page
from vergence.training import build
from vergence.training.folder import write_skipped
from vergence.utils.devices import as_device
from vergence.utils.files import replacing
from vergence.utils.version import commit

__all__ = ["advise_on"]


def advise_on(
    data: DataConfig,
    views: ViewConfig,
    *,
    out: Path,
    labels: bool = True,
    n_components: int | None = None,
    n_draws: int | None = None,
    seed: int = 0,
    device: str = "auto",
    command: str = "",
) -> Advice:
    """Advises on a source's training part and writes ``advice.json`` and ``report.html``.

    Args:
        data: The source and how it is read.
        views: The augmentation, of images or vectors.
        out: Folder to write.
        labels: Whether the source's labels are used.
        n_components: See `vergence.linear.advise`.
        n_draws: See `vergence.linear.advise`.
        seed: Of everything that is random.
        device: ``auto``, ``cpu`` or ``cuda``.
        command: What repeats it; it stands on the page.

    Raises:
        ValueError: The source or the settings are not usable, or ``out`` holds a run.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "advice"
        >>> advise_on(DataConfig(source="digits"), ViewConfig(), out=folder, device="cpu").facts["items"]
        1438
        >>> sorted(path.name for path in folder.iterdir())
        ['advice.json', 'report.html']
    """
    if (out / "config.json").exists():
        raise ValueError(f"{out} holds a trained run: choose another --out for the advice")
    on = str(as_device(device))
    out.mkdir(parents=True, exist_ok=True)  # what cannot be written is known before the work
    opened = open_data(data)
    if opened.kind == "pairs":
        raise ValueError(f"expected single items, found pairs in {data.source}: they are two views already; train on them")
    _require_fitting(views, opened.kind)
    mean, std = build.statistics(opened.train)
    made = build.make_views(opened, views, build.input_shapes(opened)[0], mean, std)
    known = None if labels else torch.full((len(opened.train),), -1)
    advice = advise(opened.train, made, labels=known, n_components=n_components, n_draws=n_draws, random_state=seed, device=on)
    facts = advice.facts | {"part": opened.note, "skipped": len(opened.skipped)}
    if labels and opened.classes and advice.facts["classes"]:
        facts["classes"] = [opened.classes[int(c)] for c in advice.facts["classes"]]
    advice = dataclasses.replace(advice, facts=facts)
    write_skipped(out / "skipped.csv", opened.skipped)
    record = {"data": dataclasses.asdict(data), "views": dataclasses.asdict(views), "seed": seed, "commit": commit()}
    _write(out, {**advice.to_dict(), **record})
    write_page(advice.to_dict(), out / "report.html", name=opened.name, command=command)
    return advice


def _require_fitting(views: ViewConfig, kind: str) -> None:
    """Refuses strengths that would silently do nothing."""
    changed = {f.name for f in dataclasses.fields(views) if getattr(views, f.name) != getattr(ViewConfig(), f.name)}
    idle = sorted(changed & VECTORS.keys() if kind == "image" else changed - VECTORS.keys())
    if idle:
        raise ValueError(f"{', '.join(idle)}: no operation on {kind}s; leave out, or set one of those that are")


def _write(out: Path, record: dict[str, Any]) -> None:
    with replacing(out / "advice.json") as part:
        part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
