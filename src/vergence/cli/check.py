"""``vergence check``, ``vergence fetch`` and ``vergence demo``."""

import itertools
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.utils import terminal
from vergence.utils.checks import expect

if TYPE_CHECKING:
    from vergence.images.result import CheckResult

SHOWN = 3  # images that are printed
PASSED = (
    "against", "heatmaps", "leaks", "encoder", "vectors", "against_vectors", "size", "fdr", "region_rate", "groups", "labels",
    "map", "only", "agreement", "keep", "column", "range", "channel", "trust_code", "workers",
)  # fmt: skip
KEPT = (
    "against", "out", "encoder", "vectors", "against_vectors", "size", "groups", "labels", "column", "range", "channel",
)  # fmt: skip
FAILURES: dict[str, Callable[[Mapping[str, Any]], int]] = {  # numbers in a summary that --fail-on may name
    "flagged": lambda s: s["flagged"],
    "leaks": lambda s: s["leaked"],
    "duplicates": lambda s: sum(s["duplicates"].values()),
    "unreadable": lambda s: s["unreadable"],
    "labels": lambda s: 0 if s["labels"] is None else s["labels"]["flagged"],
}


AFTER = "open it, or join {} to your profiles"
OF_PLATES = ("against_where", "pattern", "channels")
PLATE_FAILURES: dict[str, Callable[[Mapping[str, Any]], int]] = {
    "flagged": lambda s: s["flagged"] + s["apart"], "unreadable": lambda s: s["unreadable"], "split": lambda s: len(s["split"]),
}  # fmt: skip


@dataclass(kw_only=True)
class Check:
    """Find anomalies among images, say where and why; duplicates; blurry, dark and unreadable images. Writes a page.

    With a reference (--against) the share of false alarms among the flags is bounded, on average over folders. Without one
    nothing is flagged: images are in order, the most anomalous first.
    """

    source: Annotated[Positional[str], arg(metavar="FOLDER")]
    """Images: a folder of any depth, a file, a .parquet or .csv with a column of them, a tar, an array, or a built-in set.
    Or vectors: a .npy, .npz or .parquet file. - reads file names from standard input, one per line or from find -print0."""
    against: Annotated[str | None, arg(metavar="REFERENCE", help_behavior_hint="(default: none)")] = None
    """Reference: normal images that the others are compared with."""
    leaks: bool = False
    """Only say which images are leaked: duplicates of those of --against, exact or near."""
    only: Annotated[str, arg(metavar="WHAT", help_behavior_hint="(default: all)")] = ""
    """Only find duplicates, properties, or both (with a comma): no anomalies and no network, in less time."""
    agreement: Annotated[float | None, arg(metavar="SHARE", help_behavior_hint="(default: all)")] = None
    """Least agreement of duplicates that are reported, up to 1; exact ones have 1."""
    keep: Annotated[str | None, arg(metavar="best", help_behavior_hint="(default: not written)")] = None
    """Write remove.csv: of each set of exact and near duplicates all but the best image. Nothing is deleted."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: check-FOLDER)")] = None
    """Folder for report.html, items.parquet, items.csv, duplicates.csv, skipped.csv, embeddings.npy and summary.json."""
    heatmaps: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: none)")] = None
    """Folder for a PNG of each image that is flagged or has an anomalous region, with its heatmap over it."""
    encoder: Annotated[str, arg(metavar="NAME", help_behavior_hint="(default: auto)")] = "auto"
    """auto, the best network on this machine, else patches; patches; timm:NAME; a folder of fetch; or a run folder."""
    vectors: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Embeddings of the images by any model, as one more feature set: .npy in their order, or .npz or .parquet with names."""
    against_vectors: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """The same of the images in --against."""
    size: Annotated[int, arg(metavar="PIXELS")] = 256
    """Shorter side at which regions are examined, at most; images are never enlarged or cropped."""
    fdr: Annotated[float, arg(metavar="SHARE")] = 0.1
    """Share of false alarms among the flags, at most, on average over folders."""
    region_rate: Annotated[float, arg(metavar="SHARE")] = 0.05
    """Share of normal images in which any region is framed, at most."""
    confirm: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Your marks: the file that the page saves (path, mark), or a text file with the name of an anomaly on each line."""
    groups: Annotated[str | None, arg(metavar="PATTERN", help_behavior_hint="")] = None
    """Where the part, plate, patient or camera of an image is named: folder, prefix, a column, or a regular expression."""
    labels: Annotated[str | None, arg(metavar="PATTERN", help_behavior_hint="")] = None
    """Where the label of an image is named, as for --groups: images that another label fits better are listed."""
    map: Annotated[str, arg(metavar="NAME", help_behavior_hint="(default: tsne)")] = "tsne"
    """How the map of all images is made: tsne or pca."""
    json: bool = False
    """Print summary.json instead of sentences."""
    fail_on: options.FailOn = None
    """Exit with code 1 if there are any: flagged, labels, leaks, duplicates, unreadable, with --plate split; or any."""
    column: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Column of a table that holds the images."""
    range: Annotated[str | None, arg(metavar="LOW,HIGH", help_behavior_hint="(default: decided once for all images)")] = None
    """Numbers shown as black and white, for images of 16 bits or of floats: 0,4095."""
    channel: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: all)")] = None
    """Judge only one channel: its number (the first is 0), or red, green or blue."""
    plate: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Plate map of a microscopy plate, a table with a column of wells: judges its sites next to its own control wells."""
    against_where: Annotated[str | None, arg(metavar="CONDITION", help_behavior_hint="")] = None
    """With --plate: which are control wells, such as 'compound = DMSO'; also !=, in A,B and not in A,B."""
    pattern: Annotated[str | None, arg(metavar="REGEX", help_behavior_hint="(default: by microscope)")] = None
    """With --plate: what in a file's name is its well, site and channel: groups of these names."""
    channels: Annotated[str | None, arg(metavar="NAME,NAME", help_behavior_hint="(default: as in the names)")] = None
    """With --plate: names of the channels, in their order."""
    per: Annotated[Literal["site", "well"], arg(help_behavior_hint="(default: site)")] = "site"
    """With --plate: what is flagged."""
    data_root: options.DataRoot = None
    trust_code: options.TrustCode = False
    workers: Annotated[int, arg(metavar="N")] = 2
    """Processes that read images."""
    threads: options.Threads = None


@dataclass(kw_only=True)
class Fetch:
    """Write a network's weights to a folder, with their license, for use offline."""

    name: Annotated[Positional[str], arg(metavar="timm:NAME")]
    """Network of timm, with or without the tag of its weights."""
    to: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: where --encoder auto looks)")] = None
    """Folder to write; check takes it as --encoder."""


@dataclass(kw_only=True)
class Demo:
    """Check photographs of blood cells with anomalies, duplicates and leaks, and say what was found. Writes a page."""

    out: Annotated[Path, arg(metavar="FOLDER")] = Path("vergence-demo")
    """Folder for the images and the results; an earlier demo is replaced."""
    encoder: Annotated[str, arg(metavar="NAME", help_behavior_hint="(default: auto)")] = "auto"
    """Encoder, as for check."""
    seed: options.Seed = 0


def demo(command: Demo) -> None:
    """Runs ``vergence demo``."""
    from vergence.images.demo import demo as run
    from vergence.images.demo import planted

    found = run(command.out, encoder=command.encoder, seed=command.seed)
    for line in [*lines(found)[: 2 + SHOWN], *planted(found, command.out)]:
        print(terminal.printed(line))
    print(f"page: {command.out / 'check' / 'report.html'}")
    print("next: vergence check YOUR_FOLDER, or vergence check NEW --against REFERENCE")


def fetch(command: Fetch) -> None:
    """Runs ``vergence fetch``."""
    from vergence.images.frozen import fetch as run

    folder = run(command.name, command.to)
    print((folder / "network.json").read_text(encoding="utf-8"), end="")
    print(f"now: vergence check IMAGES --encoder {folder}")


def check(command: Check) -> None:
    """Runs ``vergence check``."""
    if command.plate is not None:
        return _plate(command)
    stated = next((name for name in OF_PLATES if getattr(command, name) is not None), None)
    expect(stated is None, "--plate FILE", f"--{str(stated).replace('_', '-')} alone", "name the plate map")
    from vergence.images.check import check as run
    from vergence.images.review import Review

    paired = not command.leaks or command.against is not None
    expect(paired, "--leaks with --against REFERENCE", "--leaks alone", "name the reference")
    failing = _failing(command)
    out = _folder(command, "images")
    found = run(
        _names(sys.stdin.buffer.read()) if command.source == "-" else command.source,
        out=out,
        confirmed=() if command.confirm is None else Review.read(command.confirm),
        root=command.data_root,
        **{name: getattr(command, name) for name in PASSED},
    )
    texts = [] if command.json else [*lines(found), f"page: {out / 'report.html'}", f"next: {_next(command, found, out)}"]
    _say(command, found.summary, texts)
    options.stop_on({name: FAILURES[name](found.summary) for name in failing})


def _folder(command: Check, other: str) -> Path:
    """Returns the folder of the results, by default named after the source."""
    return command.out or Path(f"check-{Path(command.source.rstrip('/')).name.removeprefix('-') or other}")


def _say(command: Check, summary: Mapping[str, Any], texts: Sequence[str]) -> None:
    """Prints the summary for --json, else lines of text."""
    for line in [json.dumps(summary, indent=1, ensure_ascii=False)] if command.json else map(terminal.printed, texts):
        print(line)


def _plate(command: Check) -> None:
    """Runs ``vergence check PLATE --plate FILE``."""
    from vergence.images.plates import check_plate
    from vergence.images.review import Review

    given = {one.name for one in fields(command) if getattr(command, one.name) != one.default} - {"source", "data_root"}
    others = sorted(
        given - {*OF_PLATES, "plate", "per", "out", "fdr", "confirm", "column", "workers", "threads", "json", "fail_on"}
    )
    expect(not others, "options of plates with --plate", f"--{', --'.join(others)}".replace("_", "-"), "leave these out")
    expect(command.against_where, "--against-where CONDITION with --plate", "none", "say which are control wells")
    assert command.plate is not None and command.against_where is not None
    failing = options.failing(command.fail_on, PLATE_FAILURES)
    out = _folder(command, "plate")
    about = {name: getattr(command, name) for name in ("pattern", "per", "fdr", "column", "workers")}
    found = check_plate(
        command.source,
        confirmed=() if command.confirm is None else Review.read(command.confirm),
        plate=command.plate,
        against_where=command.against_where,
        channels=command.channels or (),
        out=out,
        **about,
    )
    _say(command, found.summary, [*found.sentences, f"page: {out / 'report.html'}", f"next: {AFTER.format(out / 'sites.csv')}"])
    options.stop_on({name: PLATE_FAILURES[name](found.summary) for name in failing})


def _names(data: bytes) -> list[str]:
    """Returns names of files, each on a line or before a zero byte."""
    parts = data.split(b"\0" if b"\0" in data else b"\n")
    names = [os.fsdecode(name) for part in parts if (name := part.removesuffix(b"\r"))]
    expect(names, "names of images on standard input, one per line", "none", "pipe them in, as from find")
    return names


def _failing(command: Check) -> list[str]:
    failing = options.failing(command.fail_on, FAILURES)
    names = [] if "any" in (command.fail_on or "") else failing
    needed = [name for name in names if name in ("flagged", "labels", "leaks")]
    with_reference = command.against is not None or not needed
    expect(with_reference, f"--against REFERENCE for --fail-on {', '.join(needed)}", "none", "name the reference")
    judged = "flagged" not in names or not (command.only or command.leaks)
    expect(judged, "--fail-on flagged without --only or --leaks", "one of them", "leave one out")
    expect("labels" not in names or command.labels, "--labels for --fail-on labels", "none", "add --labels folder or prefix")
    paired = "duplicates" not in names or not command.only or "duplicates" in command.only
    expect(paired, "--only duplicates for --fail-on duplicates", command.only, "add duplicates to --only")
    return failing


def lines(found: "CheckResult") -> list[str]:
    """Returns what is printed: the answer and its condition, the most anomalous images, other findings, and the input."""
    from vergence.images.sentences import shortened_name

    sentences, top = found.summary["sentences"], found.most_anomalous(SHOWN) if found.summary["judged"] else []
    chance = "nothing stands out (p = {:.2g})" if found.calibration() else ""
    reasons = [found.items["reason"][i] or chance.format(found.items["p_value"][i]) for i in top]
    first = [f"  {shortened_name(found.items['path'][i])}: {why}".removesuffix(": ") for i, why in zip(top, reasons, strict=True)]
    return [*sentences[:2], *first, *sentences[2:], f"Input: {found.summary['input']}."]


def _again(command: Check) -> str:
    """Returns the command with the options that decide what is read and how it is judged."""
    stated = {one.name: getattr(command, one.name) for one in fields(command) if getattr(command, one.name) != one.default}
    texts = [(f"--{name.replace('_', '-')}", str(stated[name])) for name in KEPT if name in stated]
    return shlex.join(["vergence", "check", command.source, *itertools.chain(*texts), *["--trust-code"] * command.trust_code])


def _next(command: Check, found: "CheckResult", out: Path) -> str:
    """Returns the one thing to do next."""
    same = _again(command)
    if command.leaks:
        return same
    if found.reference is None and (out / "normal.csv").is_file():
        return _again(replace(command, against=str(out / "normal.csv")))
    if found.summary["judged"] and command.confirm is None:
        noun = found.summary["noun"]
        marks = f"mark {noun}s on the page with a (anomaly) or n (normal), save, move confirmed.csv here"
        return f"{marks}, then: {same} --confirm confirmed.csv"
    return f"open {out / 'report.html'}"
