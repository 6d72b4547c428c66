"""Advice on a source of data, from opening it to writing the page: ``vergence advise``."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from vergence.advice.page import write_advice
from vergence.advice.views import FEWEST_ITEMS, Advice, advise
from vergence.data.config import DataConfig, ViewConfig
from vergence.data.sources import Data, open_data
from vergence.learn.training import build
from vergence.learn.training.folder import write_skipped
from vergence.utils.checks import expect, refuse
from vergence.utils.devices import as_device
from vergence.utils.files import explained, replacing, require_writable
from vergence.utils.terminal import bar
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
    """Advises on the training part of a source and writes ``advice.json`` and ``report.html``.

    Args:
        data: The source and how it is read.
        views: The augmentation, of images or vectors.
        out: Folder to write.
        labels: Whether the source's labels are used.
        n_components: See `vergence.advice.views.advise`.
        n_draws: See `vergence.advice.views.advise`.
        seed: Seed of everything that is random.
        device: ``auto``, ``cpu`` or ``cuda``.
        command: Command line that reproduces the advice, for the page.

    Returns:
        The advice; `docs/guides/advice.md` lists the fields of ``advice.json``.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "advice"
        >>> advise_on(DataConfig(source="digits", limit=200), ViewConfig(), out=folder, n_draws=4).facts.items
        200
        >>> sorted(path.name for path in folder.iterdir())
        ['advice.json', 'report.html']
    """
    holds_run = (out / "config.json").exists()
    expect(not holds_run, "a folder for the advice", f"that {out} holds a trained run", "choose another `out`")
    on = str(as_device(device))
    require_writable(out)  # reported before the work
    opened = _opened(data, views)
    advice = advise(
        opened.train,
        build.make_views(opened, views, build.input_shapes(opened)[0]),
        labels=opened.train.labels if labels else None,
        n_components=n_components,
        n_draws=n_draws,
        properties=of_files(data.source, opened),
        random_state=seed,
        device=on,
    )
    facts = dataclasses.replace(advice.facts, part=opened.note, skipped=len(opened.skipped))
    advice = dataclasses.replace(advice, facts=facts)
    write_skipped(out / "skipped.csv", opened.skipped)
    settings = {"data": dataclasses.asdict(data), "views": dataclasses.asdict(views), "seed": seed, "commit": commit()}
    path = out / "advice.json"
    with explained(path, "free space, or choose another `out`, and repeat the command"), replacing(path) as part:
        part.write_text(json.dumps(advice.to_dict() | settings, indent=1) + "\n", encoding="utf-8")
    write_advice(advice, out / "report.html", name=opened.name, command=command)
    return advice


def _opened(data: DataConfig, views: ViewConfig) -> Data:
    """Returns the data, of which enough are left next to a test part, and which the views suit."""
    opened = open_data(data, double=True)
    pairs = opened.kind == "pairs"
    expect(not pairs, "single items", f"pairs in {data.source}", "they are two views already; train on them")
    changed = {f.name for f in dataclasses.fields(views) if getattr(views, f.name) != getattr(ViewConfig(), f.name)}
    of_vectors, changed = set(ViewConfig.of_vectors), changed - {"function"}
    idle = ", ".join(sorted(changed & of_vectors if opened.kind == "image" else changed - of_vectors))
    kind = f"operations on {opened.kind}s"
    expect(not idle, kind, f"{idle}, which is no operation on {opened.kind}s", "leave it out")
    left, share = len(opened.train), opened.share
    if left < FEWEST_ITEMS and share and data.limit is None and data.keep_classes is None:
        held_out = f"{left}: of {left + len(opened.test)} items, {100 * share:g} % are held out as a test part"
        refuse(f"at least {FEWEST_ITEMS} items to advise on", held_out, f"give at least {math.ceil(FEWEST_ITEMS / (1 - share))}")
    return opened


def of_files(source: str, opened: Data) -> dict[str, list[Any]]:
    """Returns properties of the files of a folder: ``folder``, ``size``, ``date`` and ``camera``; of other data none.

    Folders that name classes are left out. The date is that of the last change; the camera comes from the image's header.
    """
    folder, names = Path(source), opened.train.names
    if opened.kind != "image" or not folder.is_dir() or not all((folder / name).is_file() for name in names):
        return {}
    found: dict[str, list[Any]] = {"size": [], "date": [], "camera": []}
    with bar("properties of the files", len(names), late=True) as advance:
        for name in names:
            stat = (folder / name).stat()
            found["size"].append(stat.st_size)
            found["date"].append(stat.st_mtime)
            found["camera"].append(camera(folder / name))
            advance(1)
    return found if opened.classes else found | {"folder": [str(Path(name).parent) for name in names]}


def camera(file: Path) -> str:
    """Returns make and model of the camera as the header of an image has them; empty where it has none or cannot be read."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            header = image.getexif()
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError):
        return ""
    return " ".join(str(header.get(tag, "")).strip("\0 ") for tag in (0x010F, 0x0110)).strip()
