"""Advice on a source of data, from opening it to writing the page: ``vergence advise``."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vergence.advice.candidates import say_trials
from vergence.advice.page import write_advice
from vergence.advice.trials import tried
from vergence.advice.views import FEWEST_ITEMS, Advice, advise
from vergence.data.config import DataConfig, ViewConfig
from vergence.data.items import Items, spaced
from vergence.data.pixels import to_bytes, to_unit
from vergence.data.sources import Data, open_data
from vergence.learn.training import build
from vergence.learn.training.folder import require_writable, write_skipped
from vergence.report.tiles import image_of, webp
from vergence.utils.checks import expect, refuse, require_within
from vergence.utils.devices import as_device
from vergence.utils.files import explained, replacing
from vergence.utils.terminal import bar
from vergence.utils.version import commit

__all__ = ["advise_on"]

MEAN_OF, MARKED = 500, 128  # pictures of a mean; side of each picture next to it, in pixels, at least


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
    minutes: float | None = None,
    frozen: str | None = None,
    weights: str | Path | None = None,
    command: str = "",
) -> Advice:
    """Advises on the training part of a source and writes ``advice.json`` and ``report.html``.

    Args:
        data: The source and how it is read.
        views: The augmentation, of images or vectors.
        out: Folder to write.
        labels: Whether the source's labels judge what is tried.
        n_components: See `vergence.advice.views.advise`.
        n_draws: See `vergence.advice.views.advise`.
        seed: Seed of everything that is random.
        device: ``auto``, ``cpu`` or ``cuda``.
        minutes: Time to try candidates in (`vergence.advice.trials.tried`), > 0; None tries none.
        frozen: A pretrained network that is at hand, as ``encoder`` of `vergence.train` names it, to try it, too.
        weights: Its file of weights.
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
    expect(not holds_run, "a folder for the advice", f"that {out} holds a trained run", "choose another --out")
    on = str(as_device(device))
    if minutes is not None:
        require_within("(0, inf)", minutes=minutes)
    expect(minutes is not None or frozen is None, "minutes, to try the frozen network", "none", "give --minutes, such as 5")
    require_writable(out)  # reported before the work
    opened = _opened(data, views)
    advice = advise(
        opened.train,
        build.make_views(opened, views, build.input_shapes(opened)[0]),
        n_components=n_components,
        n_draws=n_draws,
        properties=of_files(data.source, opened),
        random_state=seed,
        device=on,
    )
    facts = dataclasses.replace(advice.facts, part=opened.note, skipped=len(opened.skipped))
    advice = dataclasses.replace(advice, facts=facts)
    if minutes is not None:
        found = tried(
            data, views, opened, out=out, minutes=minutes, frozen=frozen, weights=weights, labels=labels, seed=seed, device=device
        )
        words = (say_trials(found), *advice.words[1:]) if found else advice.words
        advice = dataclasses.replace(advice, words=words, trials=tuple(found))
    write_skipped(out / "skipped.csv", opened.skipped)
    settings = {"data": dataclasses.asdict(data), "views": dataclasses.asdict(views), "seed": seed, "commit": commit()}
    path = out / "advice.json"
    with explained(path, "free space, or choose another --out, and repeat the command"), replacing(path) as part:
        part.write_text(json.dumps(advice.to_dict() | settings, indent=1) + "\n", encoding="utf-8")
    marks = [marked(opened.train, place.box) for place in advice.shared.places]
    write_advice(advice, out / "report.html", name=opened.name, command=command, marks=marks)
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
    """Returns what the files of a folder say of themselves: ``folder``, ``size``, ``date`` and ``camera``; nothing of others.

    A folder that names the class says nothing. The date is that of the last change; the camera comes from the picture's header.
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
    """Returns make and model of the camera as the header of a picture has them; empty where it has none or cannot be read."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            header = image.getexif()
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError):
        return ""
    return " ".join(str(header.get(tag, "")).strip("\0 ") for tag in (0x010F, 0x0110)).strip()


def marked(items: Items, box: Sequence[int], n: int = 6) -> str:
    """Returns the mean picture and some pictures with a rectangle around a place, in a row, as a WebP in a data address."""
    from PIL import Image, ImageDraw

    x = torch.cat([to_unit(batch) for _, batch in items.stream(iter([spaced(len(items), MEAN_OF)]))])
    shown = torch.cat([x.mean(0, keepdim=True), x[spaced(len(x), n)]])
    side, (top, left, height, width) = max(MARKED, max(shown.shape[2:])), box
    row = Image.new("RGB", (side * len(shown), side), (128, 128, 128))
    for i, pixels in enumerate(to_bytes(shown).numpy()):
        picture = image_of(pixels).convert("RGB")
        times = side / max(picture.size)
        picture = picture.resize((round(picture.width * times), round(picture.height * times)), Image.Resampling.NEAREST)
        edges = [left * times - 1, top * times - 1, (left + width) * times, (top + height) * times]
        ImageDraw.Draw(picture).rectangle(edges, outline=(230, 30, 30), width=2)
        row.paste(picture, (i * side, 0))
    return f"data:image/webp;base64,{webp(row, 80)}"
