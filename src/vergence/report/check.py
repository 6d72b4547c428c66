"""The page of `check`: what is odd, where and why; groups, copies, leaks, plain properties, and files that cannot be read."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vergence.report.rendering import write
from vergence.utils.checks import counted

if TYPE_CHECKING:
    from vergence.runs.checked import CheckResult

__all__ = ["cards_of", "write_check"]

SECTIONS = {
    "odd": "Odd pictures, the oddest first",
    "groups": "Groups of pictures that are alike and unlike all others",
    "copies": "Copies",
    "leaks": "Copies of pictures of the other source",
    "properties": "Plain properties",
    "unreadable": "Files that could not be read",
    "meaning": "What the numbers mean",
}
SIDE = 160  # pixels of a picture
ODD, LEAST, MEMBERS, SETS, LISTED = 300, 24, 24, 150, 200  # pictures, members, sets and files on the page, at most or at least
BY_ITSELF = (
    "Nothing here is known to be ordinary. Each picture was scored by fits that had seen neither it nor a copy of it. Its "
    "p-value says how often an ordinary picture would be as odd, if ordinary pictures go on as most of them begin. It is an "
    "estimate, not a guarantee; with known pictures (--against) the rate holds whatever they look like."
)
CALIBRATED = (
    "The p-value of a picture is the share of known pictures, which no fit has seen, that are at least as odd. If the pictures "
    "come from where the known ones come from, then on average at most the stated share of those flagged is ordinary."
)
SCORES = (
    "The score is -log p over all levels, in nats: larger is odder. Levels are plain measurements at full size, statistics of "
    "the whole picture, and its places. The q-value is the least false-discovery rate at which a picture is reported."
)
MARKED = "A frame marks places that are odder than any place of all but {mark:.0%} of ordinary pictures{estimate}."
PROPERTIES = {
    "dark": "dark", "light": "light", "blurry": "blurry", "low_information": "with little in them", "grayscale": "gray",
    "odd_size": "of an unusual size", "odd_aspect_ratio": "of an unusual aspect ratio",
}  # fmt: skip


def write_check(path: Path, found: "CheckResult") -> Path:
    """Writes the page in one step; it loads nothing from elsewhere, and every text in it is escaped. Returns its path."""
    s, judged = found.summary, found.summary["judged"]
    flagged = [i for i in found.strangest(len(found.items)) if found.items["flag"][i]]
    order = found.strangest(max(LEAST, min(ODD, len(flagged)))) if judged else []
    pairs = [_pair(found, k) for k in range(len(found.copies))]
    copies, leaks = ([pair for pair in pairs if (pair["other"] == "yes") is other] for other in (False, True))
    sections = {k: v for k, v in SECTIONS.items() if k != "leaks" or s["known"] is not None}
    sections = {k: v for k, v in sections.items() if judged or k not in ("odd", "groups")}
    skipped = list(zip(found.skipped["path"], found.skipped["reason"], strict=True))
    left = len(flagged) - len(order)
    return write(
        path,
        "check",
        sections,
        title=f"What is in {s['source']}",
        lead=s["sentences"],
        looked=f"{s['looked']}.",
        facts=_facts(s),
        odd=cards_of(found, order),
        more=f"{left:,} more are flagged in items.csv." if left > 0 else "",
        none_odd="No picture was judged.",
        groups=[_group(found, group) for group in found.groups],
        copies=[_set_of(found, pair) for pair in copies[:SETS]],
        more_copies=_more(len(copies) - SETS, "copies.csv"),
        leaks=[_set_of(found, pair) for pair in leaks[:SETS]],
        more_leaks=_more(len(leaks) - SETS, "copies.csv"),
        properties=[_with_property(found, name) for name in PROPERTIES if name in s["properties"]],
        unreadable=skipped[:LISTED],
        more_unreadable=_more(len(skipped) - LISTED, "skipped.csv"),
        meaning=_meaning(s),
    )


def _more(n: int, file: str) -> str:
    return f"{n:,} more are listed in {file}." if n > 0 else ""


def _facts(s: Mapping[str, Any]) -> dict[str, str]:
    return {
        "Pictures": f"{s['pictures']:,}",
        "Known pictures": "" if s["known"] is None else f"{s['known']:,}",
        "Encoder": s["encoder"],
        "Flagged": f"{s['flagged']:,}" if s["judged"] else "",
        "Rate": {"none": "", "estimate": "an estimate", "split conformal": "split conformal"}[s["rate"]],
    }


def _meaning(s: Mapping[str, Any]) -> list[str]:
    if not s["judged"]:
        return ["Copies were looked for: as they are, resized, saved again, cropped, brightened, marked, mirrored or turned."]
    estimate = ", by an estimate" if s["calibration"] is None else ""
    return [BY_ITSELF if s["calibration"] is None else CALIBRATED, SCORES, MARKED.format(mark=s["mark"], estimate=estimate)]


def cards_of(found: "CheckResult", rows: Sequence[int], *, framed: bool = True) -> list[dict[str, Any]]:
    """Returns name, picture as a data URL, and lines about pictures of ``items``, for templates and notebooks."""
    return [_card(found, i, framed=framed) for i in rows]


def _card(found: "CheckResult", i: int, *, framed: bool) -> dict[str, Any]:
    item = {name: values[i] for name, values in found.items.columns.items()}
    lines = [item["reason"]] if item["reason"] else []
    if found.summary["judged"]:
        lines.append(f"score {item['score']:.1f}, q = {item['q_value']:.2g}")
    lines += [item["measurements"].replace("_", " ")] if item["measurements"] else []
    return {"name": item["path"], "picture": _picture(found, i, framed=framed), "lines": lines, "flagged": bool(item["flag"])}


def _picture(found: "CheckResult", i: int, *, framed: bool) -> str:
    try:
        pixels = found.pixels(i)
        boxes = found.marked(i) if framed and found.items["flag"][i] else []
    except (ValueError, AttributeError):  # it has gone meanwhile, or is a vector
        return ""
    return data_url(pixels, boxes)


def data_url(pixels: Any, boxes: Sequence[tuple[float, float, float, float]] = ()) -> str:
    """Returns a picture (C, H, W) of bytes as the data URL of a small JPEG, with frames (top, left, bottom, right) in [0, 1]."""
    from PIL import Image, ImageDraw

    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0))).convert("RGB")
    image.thumbnail((SIDE, SIDE))
    width, height = image.size
    for top, left, bottom, right in boxes:
        frame = (left * width, top * height, max(right * width - 1, left * width + 1), max(bottom * height - 1, top * height + 1))
        ImageDraw.Draw(image).rectangle(frame, outline=(213, 94, 0), width=2)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _group(found: "CheckResult", members: Sequence[str]) -> dict[str, Any]:
    place = found.place
    shown = cards_of(found, [place[name] for name in members[:MEMBERS]])
    more = f" The first {MEMBERS} are shown; items.csv names all." if len(members) > MEMBERS else ""
    return {"sentence": f"{counted(len(members), 'picture')} like {members[0]}.{more}", "shown": shown}


def _with_property(found: "CheckResult", name: str) -> dict[str, Any]:
    rows = [i for i, said in enumerate(found.items["measurements"]) if name in said.split("; ")]
    more = f" The first {MEMBERS} are shown; items.csv names all." if len(rows) > MEMBERS else ""
    sentence = f"{counted(len(rows), 'picture')} {PROPERTIES[name]}.{more}"
    return {"sentence": sentence, "shown": cards_of(found, rows[:MEMBERS], framed=False)}


def _pair(found: "CheckResult", k: int) -> dict[str, Any]:
    return {name: values[k] for name, values in found.copies.columns.items()}


def _set_of(found: "CheckResult", pair: Mapping[str, Any]) -> dict[str, Any]:
    agreement = "" if pair["kind"] == "equal" else f", correlation {pair['agreement']:.3f}"
    place = found.place
    shown = cards_of(found, [place[pair["path"]]], framed=False)
    if pair["other"] == "no":
        shown = cards_of(found, [place[pair["copy_of"]]], framed=False) + shown
    else:
        shown = [_other(found, pair["copy_of"]), *shown]
    return {"sentence": f"{pair['kind'].capitalize()}{agreement}", "shown": shown}


def _other(found: "CheckResult", name: str) -> dict[str, Any]:
    try:
        picture = data_url(found.pixels_of_other(name))
    except ValueError:  # it has gone meanwhile
        picture = ""
    return {"name": name, "picture": picture, "lines": ["in the other source"], "flagged": False}
