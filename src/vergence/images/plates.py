"""`check_plate`: sites of microscopy plates that cannot be used, next to the plate's own control wells, and why.

    files -> sites -> measurements of each channel -> deviations from control wells -> what is flagged -> PlateResult

Shapes: N sites, C channels, T x T tiles.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vergence.data import table_files
from vergence.data.image_list import open_images
from vergence.data.sites import GIVEN, METADATA, Sites, row_name, sites_of, well_name
from vergence.data.tables import as_table, rows_where, typed
from vergence.decide.conformal import reportable
from vergence.decide.decisions import Decisions
from vergence.images import plate_scores
from vergence.images.features import ArrayFile, rows_of
from vergence.images.plate_scores import BLEED, NONE, SHIFT, Judged, Measure
from vergence.images.regions import region_threshold
from vergence.images.review import SITES, Review
from vergence.images.sentences import NAMED, listed
from vergence.images.site_quality import CELLPROFILER, CHANNEL, site_quality
from vergence.utils.checks import counted, expect, in_percent, refuse, require_choice, require_count, require_within
from vergence.utils.dtypes import Array, Bools, Floats, Ints, Singles
from vergence.utils.files import explained, replacing, require_apart, require_writable
from vergence.utils.parts import write_table
from vergence.utils.terminal import Table, Tabular
from vergence.utils.version import __version__

__all__ = ["PlateResult", "check_plate"]

FEWEST, FIRST, SHOWN = 20, 5, 50  # control sites of a plate; of these, what decides how the plate is shown
BLACK_AND_WHITE = (0.01, 0.998)  # quantiles of control sites that are shown as black and white
REGION_RATE = 0.05  # share of control sites in which any tile is framed
PREFIX = "ImageQuality_vergence_"
DOSE = re.compile("dose|conc", re.IGNORECASE)  # in the names of columns of a plate map that tell treatments apart
DECIDED = ("score", "p_value", "q_value", "flag", "reason")
PHRASES = {
    "focus": "out of focus", "saturation": "saturated", "background": "with another background",
    "illumination": "unevenly lit", "debris": "with debris", BLEED: "with bleed", SHIFT: "shifted", NONE: "empty",
}  # fmt: skip
RARE = 0.05  # p-value up to which reasons are given
MOST_FDR = 0.5  # rate up to which it is said where flags begin
MOST_IN = 0.5  # share of the sites of a kind that lie in one channel or row, above which it is named
WELLS = ("metadata_well", "well", "well_position", "well_id")  # columns of a plate map that name the well, row, column and plate
ROW, COLUMN = ("row", "well_row", "metadata_row"), ("column", "col", "well_column", "well_col", "metadata_column")
PLATES = ("metadata_plate", "plate", "plate_id", "barcode", "assay_plate_barcode")


@dataclass(frozen=True, repr=False)
class PlateResult(Tabular):
    """What was found on plates.

    Attributes:
        sites: One row for each site that could be read: ``Metadata_Plate``, ``Metadata_Well``, ``Metadata_Site`` and
            ``Metadata_control``; other columns of the plate map, as ``Metadata_NAME``; its ``score``, ``p_value``, ``q_value``,
            ``flag`` and ``reason``, each after ``ImageQuality_vergence_``; and measurements, ``ImageQuality_NAME_CHANNEL``
            where CellProfiler has the same, else ``ImageQuality_vergence_NAME_CHANNEL``.
        skipped: Plate, well and number, ``site`` and ``reason`` of what could not be read.
        decisions: The same decisions as `Decisions`; control sites are excluded.
        summary: What was done and found, as numbers and sentences.
    """

    sites: Table
    skipped: Table
    decisions: Decisions
    summary: dict[str, Any]
    source: Sites = field(repr=False)
    index: Ints = field(repr=False)  # number of each row in the source
    heat: Singles = field(repr=False)  # how anomalous each tile is, (N, C, T, T)
    threshold: float = field(repr=False)  # above which a tile is framed
    small: ArrayFile = field(repr=False, default_factory=ArrayFile)  # small images (C, h, w) of the sites, by row
    workers: int = field(repr=False, default=0)

    @property
    def names(self) -> list[str]:
        """Plate, well and number of each site."""
        return _named(self.sites.columns)

    def column(self, name: str) -> Sequence[Any]:
        """Returns ``score``, ``p_value``, ``q_value``, ``flag`` or ``reason`` of each site."""
        return self.sites[PREFIX + name]

    def shown(self, plate: int) -> Floats:
        """Returns the numbers that are shown as black and white in each channel of a plate, (C, 2), by its control sites."""
        name, control = self.summary["plates"][plate], self.sites["Metadata_control"]
        own = [i for i, of in enumerate(self.sites["Metadata_Plate"]) if of == name and control[i]]
        values = np.concatenate([self.small.read(i).reshape(len(self.source.channels), -1) for i in own[:SHOWN]], 1)
        return np.asarray(np.quantile(values, BLACK_AND_WHITE, axis=1).T)

    @property
    def sentences(self) -> list[str]:
        """The answer, its condition, what was found, and what to look at first."""
        return list(self.summary["sentences"])

    def table(self) -> Mapping[str, Sequence[Any]]:
        """Returns names, decisions and reasons of the sites."""
        shown = [name for name in self.sites.columns if name.startswith("Metadata_")] + [PREFIX + name for name in DECIDED]
        return {name: self.sites[name] for name in shown}

    def most_anomalous(self, n: int = 12) -> list[int]:
        """Returns at most n rows of ``sites``, the most anomalous first."""
        return [int(i) for i in np.argsort(-np.asarray(self.column("score")), kind="stable")[:n]]

    _order = most_anomalous

    def write(self, out: str | Path) -> Path:
        """Writes sites.csv, sites.parquet, skipped.csv, summary.json and report.html to a folder, and returns it."""
        from vergence.images.plate_page import write_plate

        folder = Path(out)
        with explained(folder, "choose another `out`"):
            folder.mkdir(parents=True, exist_ok=True)
        for name, table in (("sites.parquet", self.sites), ("sites.csv", self.sites), ("skipped.csv", self.skipped)):
            write_table(folder / name, table.columns)
        with explained(folder, "free space and repeat the command"), replacing(folder / "summary.json") as part:
            part.write_text(json.dumps(self.summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        write_plate(folder / "report.html", self)
        return folder


def check_plate(
    source: Any,
    *,
    plate: Any,
    against_where: str,
    pattern: str | None = None,
    channels: str | Sequence[str] = (),
    per: str = "site",
    fdr: float = 0.1,
    confirmed: Review | Sequence[str] | Mapping[str, str] = (),
    out: str | Path | None = None,
    column: str | None = None,
    workers: int = 2,
) -> PlateResult:
    """Returns which sites of microscopy plates cannot be used, and why, next to the control wells of each plate.

    Args:
        source: Images of sites, a file of each channel or one of all: a folder of any depth, a tar, a table with a column of
            paths or bytes, or a list of paths. Several plates are told apart by folder, or by the pattern.
        plate: Plate map: a table, or its file, with a column of wells, and of plates where there are several.
        against_where: Which are control wells: ``compound = DMSO``; also ``!=``, ``in A,B`` and ``not in A,B``.
        pattern: Regular expression of the files' names with the groups ``well`` (or ``row`` and ``column``), ``site``,
            ``channel`` and perhaps ``plate``; by default that of a known microscope.
        channels: Names of the channels in their order, as a list or with commas.
        per: What is flagged: ``site``, or ``well``, by the medians of its sites.
        fdr: Share of false alarms among the flags, at most, on average over tables, in (0, 1).
        confirmed: Marks of a person: names of anomalies (plate, well and site), or ``anomaly`` or ``normal`` by name. Anomalies
            are flagged and do not calibrate; normal ones are not flagged.
        out: Folder in which the results are written; None writes nothing.
        column: Column of a table that holds the images.
        workers: Processes that read images.

    Raises:
        ValueError: A plate has fewer than 20 control sites or 2 control wells, or no well of the map is among the sites.

    Example:
        >>> import tempfile
        >>> import pyarrow as pa
        >>> from PIL import Image
        >>> rng, folder = np.random.default_rng(0), Path(tempfile.mkdtemp())
        >>> wells = [f"{row}{column:02d}" for row in "ABCD" for column in range(1, 7)]
        >>> for well in wells:
        ...     for site in (1, 2):
        ...         counts = rng.poisson(900, (64, 64)).astype(np.uint16)
        ...         Image.fromarray(counts).save(folder / f"{well}_s{site}_w1.tif")
        >>> plate = {"well": wells, "compound": ["DMSO"] * 20 + ["x"] * 4}
        >>> found = check_plate(folder, plate=pa.table(plate), against_where="compound = DMSO", workers=0)
        >>> found.decisions.total, found.summary["control_wells"], len(found.most_anomalous(5))
        (8, 20, 5)
    """
    require_choice("per", per, ("site", "well"))
    require_within("(0, 1)", fdr=fdr)
    require_count(0, workers=workers)
    if out is not None:
        require_apart(Path(out), (source, plate), inside=True)
        require_writable(Path(out))
    names = tuple(filter(None, map(str.strip, channels.split(",") if isinstance(channels, str) else channels)))
    called = Path(source).stem if isinstance(source, str | Path) else "plate"
    sites = sites_of(open_images(source, column=column), pattern=pattern, channels=names, plate=called)
    sites, known = _mapped(sites, plate, against_where)
    small = ArrayFile()

    def keep(i: int, row: dict[str, Any]) -> None:
        small.keep(len(small), row.pop("small"))

    rows = rows_of(site_quality, sites.images, range(len(sites.images)), workers, "measure", each=keep, unit="sites")
    expect(rows, "sites that can be read", "none", "see the reasons above")
    found = _judged(sites, rows, known.of(rows["index"]), per, fdr, Review.of(confirmed))
    found = replace(found, small=small, workers=workers)
    if out is not None:
        found.write(out)
    return found


# The plate map


@dataclass(frozen=True)
class _Map:
    """What the plate map says of each site (N,)."""

    control: Bools
    columns: dict[str, Array]  # its other columns, named Metadata_NAME; NaN or "" for wells that it lacks
    treatment: str  # of them, the column that tells control wells from others
    notes: list[str]

    def of(self, index: Ints) -> "_Map":
        """Returns the same of some sites."""
        return replace(self, control=self.control[index], columns={name: x[index] for name, x in self.columns.items()})

    @property
    def treatments(self) -> list[str]:
        """Name of the treatment of each site, with its dose; "" of control sites and where none is known."""
        names = [name for name in self.columns if name == self.treatment or DOSE.search(name)]
        if self.treatment not in names:
            return [""] * len(self.control)
        names.sort(key=lambda name: name != self.treatment)
        parts = [[f"{x:g}" if isinstance(x, float) else str(x) for x in self.columns[name].tolist()] for name in names]
        for name, part in zip(names[1:], parts[1:], strict=True):  # DMSO, dose 0.1
            part[:] = [f"{name.removeprefix('Metadata_')} {x}" for x in part]
        rows = zip(self.control.tolist(), *parts, strict=True)
        return ["" if control or not row[0] else ", ".join(row) for control, *row in rows]


def _mapped(sites: Sites, plate: Any, where: str) -> tuple[Sites, _Map]:
    """Returns the sites, with the name that the map gives a single plate, and what it says of each; with notes."""
    import pyarrow as pa

    table = as_table(plate)
    table = table_files.read_table(Path(plate)) if table is None else table
    used, plates, wells = _places(table)
    is_control, treatment = rows_where(table, where, "control wells", "the plate map")
    sites, renamed = _with_plate(sites, plates)
    single = len(set(plates)) == 1  # a map of one plate is that of all
    keys = [("" if single else name, well) for name, well in zip(plates, wells, strict=True)]
    columns, others = _agreeing(table, [name for name in table.column_names if name not in used], keys, treatment)
    index, notes = _matched([("" if single else name, well) for name, well in sites.wells], keys)
    taken = pa.array([None if i < 0 else i for i in index], pa.int64())
    named = {_metadata(name): typed(table[name].take(taken)) for name in columns}
    control = np.array([i >= 0 and is_control[i] for i in index], dtype=bool)
    expect(not control.all(), f"wells other than control wells ({where})", "none", "correct the condition")
    known = {k: x for k, x in named.items() if k not in METADATA}
    return sites, _Map(control, known, _metadata(treatment), [*renamed, *notes, *others])


def _places(table: Any) -> tuple[list[str], list[str], list[str]]:
    """Returns the columns of a plate map that name wells and plates, and the plate and well of each row; "" for none."""
    lower = {name.strip().lower().replace(" ", "_"): name for name in table.column_names}
    well, row, column, own = ([lower[k] for k in names if k in lower] for names in (WELLS, ROW, COLUMN, PLATES))
    there = ", ".join(table.column_names)
    expect(well or (row and column), "a column of wells in the plate map (well), or row and column", there, "rename it")
    if well:
        wells = ["" if name is None else well_name(str(name)) for name in table[well[0]].to_pylist()]
    else:
        both = zip(table[row[0]].to_pylist(), table[column[0]].to_pylist(), strict=True)
        wells = ["" if None in place else well_name(f"{row_name(str(place[0]))}{place[1]}") for place in both]
    plates = ["" if name is None else str(name) for name in table[own[0]].to_pylist()] if own else [""] * len(wells)
    return well + own, plates, wells


def _with_plate(sites: Sites, plates: Sequence[str]) -> tuple[Sites, list[str]]:
    """Returns the sites, named after the plate of the map if both have one, and a note; the map has all plates that it names."""
    names, there = sorted(set(plates)), sorted({name for name, _ in sites.wells})
    if names == [""] or names == there:
        return sites, []
    if len(names) == len(there) == 1:
        return sites.of_plate(names[0]), [f"Plate {there[0]} is called {names[0]}, as in the plate map."]
    unknown = [name for name in there if name not in names]
    given, found = table_files.listed(names, 3), f"{table_files.listed(unknown, 3)} among the images"
    expect(not unknown, f"the plates of the plate map, {given}", found, "correct the map or the pattern")
    return sites, []


Key = tuple[str, str]  # plate and well


def _agreeing(table: Any, columns: Sequence[str], keys: Sequence[Key], treatment: str) -> tuple[list[str], list[str]]:
    """Returns the columns of a plate map that say one thing of each well, as the treatment has to, and a note on others."""
    first, kept = dict[Key, int](), list[str]()
    at = [first.setdefault(key, i) for i, key in enumerate(keys)]
    for name in columns:
        values = table[name].to_pylist()
        differ = [" ".join(filter(None, keys[i])) for i, k in enumerate(at) if keys[i][1] and values[i] != values[k]]
        if differ and (name == treatment or DOSE.search(name)):
            refuse("each well in one row of the plate map", f"{differ[0]} in rows that differ", "correct the map")
        kept += [] if differ else [name]
    others = [name for name in columns if name not in kept]
    return kept, [f"Columns that differ within wells are left out: {table_files.listed(others, 3)}."] if others else []


def _matched(mine: Sequence[Key], keys: Sequence[Key]) -> tuple[list[int], list[str]]:
    """Returns the row of the plate map of each site (N,), -1 for none, and notes on wells that only one of both has."""
    row = {key: i for i, key in enumerate(keys) if key[1]}
    lacking, without = (sorted(" ".join(filter(None, key)) for key in some) for some in ({*mine} - {*row}, {*row} - {*mine}))
    some = table_files.listed(lacking, 3)
    expect(len(lacking) < len(set(mine)), f"wells of the plate map such as {keys[0][1]}", some, "correct the map or the pattern")
    texts = ((lacking, "not in the plate map, judged as treated wells"), (without, "of the plate map without images"))
    notes = [f"{counted(len(wells), 'well')} {what}: {table_files.listed(wells, 3)}." for wells, what in texts if wells]
    return [row.get(key, -1) for key in mine], notes


def _metadata(name: str) -> str:
    """Returns the name of a column of the plate map among the results."""
    return name if name.startswith("Metadata_") else f"Metadata_{name}"


# The judgment


def _compared(
    wells: Sequence[tuple[str, str]], rows: Mapping[str, Array], control: Bools, channels: Sequence[str], mark: Ints
) -> tuple[plate_scores.Units, Floats, list[Measure], list[str]]:
    """Returns the sites (N,) as they are compared, their measurements (N, q) as they are, what these are, and the plates."""
    plates, plate = np.unique([name for name, _ in wells], return_inverse=True)
    number = np.unique([" ".join(well) for well in wells], return_inverse=True)[1].reshape(-1)
    table, place = rows["channels"], plate_scores.rows_and_columns([name for _, name in wells])
    measures, x = plate_scores.measures_of(channels, table, rows["pairs"])
    cells, raw = plate_scores.cells_of(table), x.copy()
    for p, name in enumerate(plates.tolist()):
        own = plate == p
        here, its = own & control, len(np.unique(number[own & control]))
        has = f"{counted(int(here.sum()), 'site')} of {counted(its, 'well')}"
        enough = f"at least {FEWEST} control sites of 2 wells on plate {name}"
        expect(here.sum() >= FEWEST and its > 1, enough, has, "name more control wells")
        expect(np.ptp(x[here], 0).any(), f"control sites that differ on plate {name}", "equal ones", "give images of cells")
        x[own] = plate_scores.unexplained(x[own], cells[own], place[own])
    none = plate_scores.empty(table, control, plate)
    units = plate_scores.Units(np.c_[x, none], control, number, plate.reshape(-1), place, mark)
    return units, np.c_[raw, none], [*measures, Measure(NONE, "", 1, 1.0)], plates.tolist()


def _judged(sites: Sites, rows: Mapping[str, Array], known: _Map, per: str, fdr: float, review: Review) -> PlateResult:
    """Returns what is found among sites, by the columns that `site_quality` gives of each."""
    index, control, skipped = rows["index"], known.control, _skipped(sites)
    why_not = f"none ({skipped['reason'][0]})" if len(skipped) else "none"
    expect(not control.all(), "sites of other wells than control wells that can be read", why_not, "see the reason")
    columns: dict[str, Any] = {name: [sites.images.columns[name][i] for i in index.tolist()] for name in METADATA}
    if all(number.isdecimal() for number in columns[METADATA[2]]):
        columns[METADATA[2]] = np.array(columns[METADATA[2]], dtype=np.int64)
    names, wells = _named(columns), list(zip(*(columns[name] for name in METADATA[:2]), strict=True))
    mark = review.marked(names, "anomaly").astype(np.int64) - review.marked(names, "normal")
    units, raw, measures, plates = _compared(wells, rows, control, sites.channels, mark)
    one, of = (units, np.arange(len(wells))) if per == "site" else (units.by_well(), units.well)
    found = plate_scores.judged(one, measures, fdr)
    drift = plate_scores.split_controls(replace(units, x=raw), measures, plate_scores.STEEP)
    found = replace(found, split=list({where[:2]: where for where in [*found.split, *drift]}.values()))
    heat = plate_scores.heat_of(rows["tiles"], control, units.plate)
    telling = plate_scores.most_telling(found.added, measures)
    why = [telling[k] for k in of.tolist()]
    told = ((found.decisions.flag | found.apart)[of] | (mark > 0)) & (mark >= 0)
    probable = told | (np.asarray(found.decisions.columns["p_value"]) <= RARE)[of]
    columns |= {**known.columns, "Metadata_control": control.astype(np.uint8)}
    columns |= {PREFIX + name: np.asarray(found.decisions.columns[name])[of] for name in ("score", "p_value", "q_value")}
    reasons = [PHRASES[m.kind] + _in(m.channel) if tell else "" for m, tell in zip(why, probable.tolist(), strict=True)]
    columns |= {PREFIX + "flag": told.astype(np.uint8), PREFIX + "reason": reasons}
    columns |= _measurements(sites.channels, rows["channels"], rows["pairs"])
    summary = _summary(sites, found, plates, per, control, len(np.unique(units.well[control])), len(skipped))
    summary["marks"] = {name: of for name, of in review.marks().items() if name in set(names)}
    summary["treatments"] = _treatments(known.treatments, units.well, found.decisions.flag[of])
    first = np.unique(of, return_index=True)[1]  # a site of each well that is judged, or each site
    kinds = _kinds(columns, why, first[found.decisions.flag].tolist())
    order = sorted(first[~control[first]].tolist(), key=lambda i: -columns[PREFIX + "score"][i])[:FIRST]
    parts = METADATA[len(plates) == 1 : 3 if per == "site" else 2]  # of a name
    first_names = [" ".join(str(columns[name][i]) for name in parts) for i in order]
    phrases = [f"{PHRASES[why[i].kind]}{_in(why[i].channel)}" for i in order]
    summary["first"] = [f"{name} ({phrase})" for name, phrase in zip(first_names, phrases, strict=True)]
    summary["sentences"] = _sentences(summary, kinds, [*review.notes(names, SITES), *sites.notes, *known.notes], skipped)
    threshold = region_threshold(heat[control].max((1, 2, 3)), REGION_RATE)
    return PlateResult(Table(columns), skipped, found.decisions, summary, sites, index, heat, threshold)


def _named(columns: Mapping[str, Any]) -> list[str]:
    return [" ".join(map(str, key)) for key in zip(*(columns[name] for name in METADATA), strict=True)]


def _skipped(sites: Sites) -> Table:
    """Returns what could not be read, with the names that profiles are joined by."""
    every = sites.images.skipped
    keys = [sites.keys.get(one.name, ("", "", "")) for one in every]
    columns = dict(zip(METADATA, zip(*keys, strict=True), strict=True)) if keys else dict.fromkeys(METADATA, ())
    return Table({**columns, "site": [one.name for one in every], "reason": [one.reason for one in every]})


def _measurements(channels: Sequence[str], table: Array, pairs: Array) -> dict[str, Any]:
    """Returns the columns of measurements; those that CellProfiler defines otherwise, or not at all, have names of their own."""
    names = [f"ImageQuality_{name}" if name in CELLPROFILER else PREFIX + name for name in CHANNEL]
    columns = {f"{name}_{c}": table[:, k, m] for k, c in enumerate(channels) for m, name in enumerate(names)}
    for (a, b), x in zip(itertools.combinations(channels, 2), pairs.transpose(1, 0, 2), strict=True):
        columns |= {f"{PREFIX}{name}_{a}_{b}": of for name, of in zip(("Correlation", "Shift"), x.T, strict=True)}
    return columns


def _in(channel: str) -> str:
    """Returns where an error is, in words behind its kind; nothing for all channels."""
    between = "between" if " and " in channel else "in" if not channel[:1].isdecimal() else "in channel"
    return f" {between} {channel}" if channel else ""


def _kinds(columns: Mapping[str, Any], why: Sequence[Measure], flagged: Sequence[int]) -> list[str]:
    """Returns how many flagged sites, or wells, have each kind of error, the most common first, and where most of them are."""
    texts = []
    for kind, n in Counter(why[i].kind for i in flagged).most_common():
        own = [i for i in flagged if why[i].kind == kind]
        channel, often = Counter(why[i].channel for i in own).most_common(1)[0]
        most = [_in(channel)] if n > often > MOST_IN * n else []
        place = _place(*([columns[name][i] for i in own] for name in METADATA[:2])) if n > NAMED else ""
        most += [f" in {place}"] if place else []
        where = _in(channel) if often == n else ""
        texts.append(f"{n:,} {PHRASES[kind]}{where}" + (f", most{' and'.join(most)}" if most else ""))
    return texts


def _place(plates: Sequence[str], wells: Sequence[str]) -> str:
    """Returns the well, or the row of at least 3 of them, in which most of some sites are; "" for none."""
    rows = [well.rstrip("0123456789") for well in wells]
    for what, places, fewest in (("well", wells, 1), ("row", rows, 3)):
        (plate, place), n = Counter(zip(plates, places, strict=True)).most_common(1)[0]
        inside = {well for of, at, well in zip(plates, places, wells, strict=True) if (of, at) == (plate, place)}
        if n > MOST_IN * len(wells) and len(inside) >= fewest:
            return f"{what} {place}" + (f" of {plate}" if len(set(plates)) > 1 else "")
    return ""


def _treatments(names: Sequence[str], well: Ints, flag: Bools) -> list[list[Any]]:
    """Returns each treatment with flags: its name, flagged sites, wells of these, and its wells; the most flags first."""
    found = dict[str, list[set[int]]]()
    for i, name in enumerate(names):
        sites, bad, every = found.setdefault(name, [set(), set(), set()])
        every.add(int(well[i]))
        if flag[i]:
            sites.add(i)
            bad.add(int(well[i]))
    rows = [[name, *map(len, of)] for name, of in found.items() if name and of[0]]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def _summary(
    sites: Sites, found: Judged, plates: Sequence[str], per: str, control: Bools, wells: int, skipped: int
) -> dict[str, Any]:
    """Returns ``summary.json``."""
    return {
        "version": __version__,
        "plates": list(plates),
        "channels": list(sites.channels),
        "pattern": list(sites.pattern),
        "noun": per,
        "sites": len(control),
        "control_sites": int(control.sum()),
        "control_wells": wells,
        "judged": found.decisions.total,
        "flagged": found.decisions.flagged,
        "apart": int(found.apart.sum()),
        "calibration": found.decisions.calibration,
        "fdr": found.decisions.fdr,
        "least_fdr": float(np.asarray(found.decisions.columns["q_value"]).min()),
        "unreadable": skipped,
        "split": [[plates[p], where, one.kind, one.channel] for p, where, one in found.split],
    }


def _sentences(s: Mapping[str, Any], kinds: Sequence[str], notes: Sequence[str], skipped: Table) -> list[str]:
    """Returns plates to look at first, the answer, its condition, and what else to know."""
    noun, rate, texts = s["noun"], in_percent(s["fdr"]), list[str]()
    given = counted(s["calibration"], f"control {noun}")
    for plate, where, kind, channel in s["split"]:
        what = f"{'brightness' if kind == NONE else kind}{_in(channel)}"
        texts.append(f"Control wells of plate {plate} differ by {where}, most in the {what}. Look at this plate first.")
    texts.append(f"{s['flagged']:,} of {counted(s['judged'], noun)} flagged.")
    if s["flagged"]:
        flags = "flags, together with the anomalies that you marked," if "anomaly" in s["marks"].values() else "flags"
        alike = f"if normal {noun}s are like those of the control wells"
        texts.append(f"On average at most {rate} of {flags} are false alarms, {alike}.")
        texts += ["A strong treatment can be flagged without an error: look before you drop its sites.", f"{'; '.join(kinds)}."]
    else:
        needed = reportable(s["calibration"], max(s["judged"], 1), s["fdr"]).fewest
        texts.append(f"With {given}, a flag at {rate} needs at least {counted(needed, f'anomalous {noun}')}.")
        least = f"Flags begin at a rate of {in_percent(s['least_fdr'], bound=True)}. " if s["least_fdr"] <= MOST_FDR else ""
        texts.append(f"{least}The most anomalous: {'; '.join(s['first'])}.")
    often = [f"{name} ({bad:,} of {wells:,} wells)" for name, _, bad, wells in s["treatments"] if 2 <= bad >= wells / 2]
    texts += [f"Often flagged, perhaps as an effect: {listed(often, 'sites.csv')}."] if often else []
    if s["apart"]:
        them = f"{s['apart']:,} of {counted(s['apart'] + s['calibration'], noun)}"
        texts.append(f"Control {noun}s that stand apart: {them}. Flagged without a rate; nothing is compared with them.")
        texts.append(f"The rate holds if these control {noun}s have errors.")
    texts.append(f"Compared with {given} of {counted(s['control_wells'], 'well')}.")
    if len(skipped):
        each = [f"{name} ({why})" for name, why in zip(skipped["site"], skipped["reason"], strict=True)]
        known = sum(name != "" for name in skipped[METADATA[1]])
        many = " and ".join(counted(n, of) for n, of in ((known, "site"), (len(each) - known, "file")) if n)
        texts.append(f"{many} not judged: {listed(each, 'skipped.csv')}.")
    channels = ", ".join(s["channels"])
    read = "as the pattern says" if s["pattern"][0] == GIVEN else f"as {s['pattern'][0]}"
    return [*texts, *notes, f"Names read {read}; {counted(len(s['channels']), 'channel')}: {channels}."]
