"""Plates: measurements by slow formulas, what cells explain, rates next to control wells, and a plate with planted errors."""

import base64
import csv
import io
import json
import pathlib
import re
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow.csv import write_csv
from scipy import ndimage

from vergence.images.features import ArrayFile
from vergence.images.plate_page import _images
from vergence.images.plate_scores import (
    STEEP,
    Measure,
    Units,
    apart,
    evened,
    heat_of,
    judged,
    measures_of,
    most_telling,
    rows_and_columns,
    split_controls,
    unexplained,
)
from vergence.images.plates import METADATA, PHRASES, _agreeing, _place, check_plate
from vergence.images.regions import region_threshold
from vergence.images.site_quality import CHANNEL, measured, site_quality
from vergence.utils.terminal import Table

ROWS, COLUMNS, SITES, SIDE = "ABCDEF", 10, 3, 64
CONTROLS = (1, 4, 7, 10)


def scene(seed, cells=12):
    """Draws blobs on a background, in counts of 16 bits."""
    rng = np.random.default_rng(seed)
    x = np.zeros((SIDE, SIDE))
    for r, c in rng.integers(0, SIDE, (rng.poisson(cells), 2)):
        x[r, c] += rng.uniform(0.7, 1.3)
    texture = 1 + 0.2 * rng.standard_normal(x.shape)
    return 600 + 160_000 * ndimage.gaussian_filter(x, 2.5) * texture


def counts(light, seed):
    """Adds the noise of the camera."""
    return np.clip(np.random.default_rng(seed).poisson(light), 0, 65_535).astype(np.uint16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A plate of 180 sites and 2 channels: a row out of focus in channel 2, wells with few cells that are no error, debris."""
    folder = tmp_path_factory.mktemp("P1")
    rows = []
    for r, row in enumerate(ROWS):
        for column in range(1, COLUMNS + 1):
            control = column in CONTROLS
            rows.append({"well": f"{row}{column}", "compound": "DMSO" if control else f"c{column}"})
            for s in range(1, SITES + 1):
                seed = 1000 * r + 10 * column + s
                one = scene(seed, cells=4 if column == 3 else 12)
                both = [one, 600 + 0.7 * (one - 600)]
                if not control and row == "A":
                    both[1] = ndimage.gaussian_filter(both[1], 6)
                if (row, column, s) == ("D", 5, 1):
                    y, x = np.mgrid[:SIDE, :SIDE]
                    both[0] = both[0] + 50_000 * np.exp(-((y - 20.0) ** 2 + (x - 30.0) ** 2) / 150)
                for w, light in enumerate(both, 1):
                    Image.fromarray(counts(light, seed + 7 * w)).save(folder / f"{row}{column:02d}_s{s}_w{w}.tif")
    write_csv(pa.Table.from_pylist(rows), folder / "plate.csv")
    return folder


@pytest.fixture(scope="module")
def found(folder):
    return check_plate(folder, plate=folder / "plate.csv", against_where="compound = DMSO", workers=0, channels="DNA,ER", fdr=0.2)


# Measurements


def slow(x):
    """Measurements of CellProfiler's MeasureImageQuality, by their definitions in loops."""
    values = sorted(x.astype(np.float64).ravel() / 65_535)
    n, mean = len(values), sum(values) / len(values)
    median = values[n // 2 - 1] if n % 2 == 0 else values[n // 2]
    away = sorted(abs(v - median) for v in values)
    variance = sum((v - mean) ** 2 for v in values) / n
    return {
        "MeanIntensity": mean, "StdIntensity": variance**0.5, "MedianIntensity": median, "MADIntensity": away[n // 2 - 1],
        "MinIntensity": values[0], "MaxIntensity": values[-1], "FocusScore": variance / mean,
        "PercentMaximal": 100 * sum(v == values[-1] for v in values) / n,
        "PercentMinimal": 100 * sum(v == values[0] for v in values) / n,
    }  # fmt: skip


def of(x):
    return dict(zip(CHANNEL, measured(x)[0], strict=True))


def test_measurements_equal_their_definitions():
    x = counts(scene(3), 4)
    row = of(x)
    for name, value in slow(x).items():
        assert row[name] == pytest.approx(value, rel=1e-6), name


def test_power_falls_with_frequency_as_a_loop_says():
    x = counts(scene(3), 4) / 65_535
    f = np.fft.fft2(x - x.mean())
    total = np.zeros(SIDE)
    for i, u in enumerate(np.fft.fftfreq(SIDE) * SIDE):
        for j, v in enumerate(np.fft.fftfreq(SIDE) * SIDE):
            if j <= SIDE // 2:
                total[int(np.rint(np.hypot(u, v)))] += abs(f[i, j]) ** 2
    at = np.arange(1, SIDE // 2)
    slope = np.polyfit(np.log(at), np.log(total[1 : SIDE // 2]), 1)[0]
    assert of(counts(scene(3), 4))["PowerLogLogSlope"] == pytest.approx(slope, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "sign", "change"),
    [
        ("LogLaplacian2", -1, lambda x: ndimage.gaussian_filter(x, 3)),
        ("PowerLogLogSlope", -1, lambda x: ndimage.gaussian_filter(x, 3)),
        ("PercentMaximal", 1, lambda x: np.minimum(20 * x, 90_000)),
        ("Background", 1, lambda x: x + 2_000),
        ("Bright", 1, lambda x: x + 60_000 * (np.hypot(*(np.mgrid[:SIDE, :SIDE] - 30)) < 8)),
        ("ShadingX", 1, lambda x: x * np.linspace(0.6, 1.4, SIDE)),
        ("Blobs", -1, lambda x: np.full_like(x, 600)),
    ],
)
def test_an_error_moves_its_measurement(name, sign, change):
    before, after = (of(counts(light, 1))[name] for light in (scene(5), change(scene(5))))
    assert sign * (after - before) > 0.02 and abs(after - before) > 0.2 * abs(before)


# Decisions


def units(rng, wells=40, sites=4, controls=16, q=6, shift=0.0):
    """Gaussian measurements of sites on a plate of 5 rows; controls first."""
    well = np.repeat(np.arange(wells), sites)
    x = rng.normal(size=(len(well), q)) + 0.5 * rng.normal(size=(wells, q))[well]
    place, zeros = np.c_[well % 5, well // 5], np.zeros(len(well), dtype=np.int64)
    control = np.isin(well, rng.choice(wells, controls, replace=False))
    return Units(x + shift * (place[:, 1:] > 3), control, well, zeros, place, zeros)


MEASURES = [Measure("focus", "1", sign, 0.1) for sign in (-1, -1, 1, 1, 0, 0)]


def test_normal_sites_are_flagged_in_few_tables():
    false = [judged(units(np.random.default_rng(seed)), MEASURES, 0.1).decisions.flagged > 0 for seed in range(60)]
    assert np.mean(false) <= 0.1 + 2.6 * np.sqrt(0.09 / 60)


def test_p_values_of_normal_sites_are_uniform():
    each = [units(np.random.default_rng(seed)) for seed in range(40)]
    p = np.concatenate([judged(one, MEASURES, 0.1).decisions.p_value[~one.control] for one in each])
    for level in (0.05, 0.1, 0.5):
        assert abs((p <= level).mean() - level) < 0.02


def test_the_direction_of_an_error_counts():
    one = units(np.random.default_rng(0), wells=200, controls=120)
    new = np.flatnonzero(~one.control)
    for j, sign in ((0, -1), (2, 1), (4, 1), (5, -1)):
        one.x[new[10 * j : 10 * j + 10], j] += 12 * sign
    one.x[new[-10:], 0] += 12  # sharper is no error
    found = judged(one, MEASURES, 0.1)
    bad = np.concatenate([new[10 * j : 10 * j + 10] for j in (0, 2, 4, 5)])
    flag = found.decisions.flag
    assert flag[bad].mean() > 0.9 and flag.sum() <= len(bad) + 6 and not flag[new[-10:]].any()


def test_control_sites_with_errors_do_not_calibrate():
    one = units(np.random.default_rng(1), wells=200, controls=120)
    bad, new = np.flatnonzero(one.control)[:6], np.flatnonzero(~one.control)[:40]
    one.x[np.r_[bad, new], 2] += 15
    found = judged(one, MEASURES, 0.1)
    assert found.apart[bad].all() and found.apart.sum() <= 8 and found.decisions.flag[new].all()
    some = np.flatnonzero(one.control)[-5:]
    one.mark[some], one.mark[new[:3]], one.mark[new[3:5]], one.mark[bad] = 1, 1, -1, -1
    marked = judged(one, MEASURES, 0.1)
    n, m, flag = found.decisions.calibration + found.apart.sum(), found.decisions.total, marked.decisions.flag
    assert marked.decisions.calibration == n - marked.apart.sum() - 5 and not marked.apart[[*some, *bad]].any()
    assert marked.decisions.total == m - 3 and not flag[new[:5]].any() and flag.sum() > 0


def test_scores_of_one_tail_do_not_stand_apart():
    share = [apart(np.random.default_rng(seed).exponential(size=200)).sum() for seed in range(200)]
    assert np.mean(share) < 0.4  # a tenth is expected, with the error of the scale


def test_cells_and_place_are_taken_away_and_errors_stay():
    rng = np.random.default_rng(0)
    place = np.stack(np.divmod(np.arange(384), 24), 1)
    cells = rng.normal(size=(384, 2))
    x = 3 * cells[:, :1] + cells[:, 1:] ** 2 + 0.2 * place[:, 1:] + 0.1 * rng.normal(size=(384, 1))
    x[:20] += 5
    left = unexplained(x, cells, place)
    assert np.abs(left[20:]).max() < 0.6 and left[:20].min() > 4


def test_controls_that_differ_by_column_are_said_and_the_rim_is_evened():
    rng = np.random.default_rng(2)
    assert split_controls(units(rng, wells=60, controls=40), MEASURES) == []
    assert [name for _, name, _ in split_controls(units(rng, wells=60, controls=40, shift=6.0), MEASURES)][:1] == ["columns"]
    one = units(rng, wells=60, controls=40)
    assert split_controls(one, MEASURES, STEEP) == []
    drift = split_controls(replace(one, x=one.x + np.outer(one.place[:, 1], [0, 2, 0, 0, 0, 0])), MEASURES, STEEP)
    assert [(name, measure.sign) for _, name, measure in drift] == [("columns", -1)]
    one.x[rim := one.rim == 1] += 9
    even = evened(one.x, rim, one.control)
    assert abs(np.median(even[rim]) - np.median(even[~rim])) < 0.5
    even += 9.0 * (np.abs(one.place[:, 1] - 5.5) < 3)[:, None]  # in the middle
    assert "columns" in [name for _, name, _ in split_controls(replace(one, x=even), MEASURES)]


def test_the_reason_is_the_error_that_fits():
    measures = [*measures_of("abc", np.zeros((1, 3, len(CHANNEL))), np.zeros((1, 3, 2)))[0], Measure("empty", "", 1, 1.0)]
    lights = {("background", k): 6 for k in "abc"}
    cases = [
        ("focus", {("focus", "a"): 6, ("bleed", "a and b"): 3}),  # blur leaves the background as it is
        ("bleed", {("focus", "a"): 6, ("background", "a"): 6, ("bleed", "a and b"): 3}),
        ("shift", {("shift", "a and b"): 3, ("bleed", "a and b"): -4, ("bleed", "a and c"): 6}),
        ("debris", {("bleed", k): 9 for k in ("a and b", "a and c", "b and c")} | {("debris", "b"): 3}),
        ("debris", lights),  # an object in all channels
        ("background", lights | {("debris", k): -3 for k in "abc"}),
        ("saturation", lights | {("saturation", "c"): 2}),
        ("empty", {("debris", "a"): 9, ("empty", ""): 1e-7}),
    ]
    added = np.array([[values.get((one.kind, one.channel), 0.0) for one in measures] for _, values in cases])
    found = most_telling(added, measures)
    assert [one.kind for one in found] == [kind for kind, _ in cases] and [one.channel for one in found[3:6]] == [""] * 3


def test_a_heatmap_marks_what_differs_and_nothing_else():
    rng = np.random.default_rng(0)
    light = np.exp(rng.normal(np.array([-4, -2])[:, None, None], 0.1, (60, 2, 2, 16, 16)))
    tiles = np.concatenate([rng.normal(-9, 0.2, (60, 2, 1, 16, 16)), light], 2).astype(np.float32)
    tiles[50, 0, 2, 4:8, 8:12] *= 3  # an object, and a channel out of focus
    tiles[51, 1, 0] -= 3
    heat = heat_of(tiles, np.arange(60) < 50, np.zeros(60, dtype=np.int64))
    framed = heat > region_threshold(heat[:50].max((1, 2, 3)), 0.05)
    assert framed[50, 0, 4:8, 8:12].all() and framed[51, 1].all() and framed[52:].mean() < 0.02
    assert not framed[[50, 51], [1, 0]].any()


def test_rows_and_columns_of_wells():
    assert rows_and_columns(["A1", "H12", "AF48"]).tolist() == [[0, 0], [7, 11], [31, 47]]
    assert not rows_and_columns(["B2", "left"]).any() and not rows_and_columns(["W02", "W99"]).any()


# A whole plate


def test_planted_errors_are_flagged_and_few_cells_are_not(found):
    wells, site = found.sites["Metadata_Well"], found.sites["Metadata_Site"]
    flag, reason = np.asarray(found.column("flag")), found.column("reason")
    row = [i for i, well in enumerate(wells) if well[0] == "A" and int(well[1:]) not in CONTROLS]
    debris = next(i for i, (well, s) in enumerate(zip(wells, site, strict=True)) if (well, s) == ("D05", 1))
    few = [i for i, well in enumerate(wells) if well[1:] == "03" and well[0] != "A"]
    assert flag[row].mean() >= 0.7 and Counter(reason[i] for i in row if flag[i]).most_common(1)[0][0] == "out of focus in ER"
    assert flag[few].mean() <= 0.2 and found.decisions.p_value[debris] <= 0.05
    assert found.sentences[0] == f"{found.decisions.flagged} of 108 sites flagged."
    assert any("out of focus in ER, most in row A" in text for text in found.sentences)


def test_results_are_files_that_others_join(found, tmp_path):
    folder = found.write(tmp_path / "qc")
    names = {"sites.csv", "sites.parquet", "skipped.csv", "summary.json", "report.html"}
    assert {file.name for file in folder.iterdir()} == names
    with (folder / "sites.csv").open(encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    names = {"ImageQuality_FocusScore_DNA", "ImageQuality_vergence_Blobs_DNA", "ImageQuality_vergence_Shift_DNA_ER"}
    assert len(rows) == 180 and {*METADATA, *names} <= set(rows[0])
    assert [rows[k]["Metadata_compound"] for k in (0, 3)] == ["DMSO", "c2"]
    assert json.loads((folder / "summary.json").read_text())["control_wells"] == 24
    page = (folder / "report.html").read_text()
    assert 'title="A01 (control well: compound DMSO): 0 of 3 flagged"' in page
    assert page.count("data-search=") >= 60 and "out of focus in ER" in page and '"control well: compound DMSO"' in page


def test_treatments_with_flags_are_counted_by_wells(found):
    compound, flag = found.sites["Metadata_compound"], found.decisions.flag
    for name, sites, bad, wells in found.summary["treatments"]:
        own = [i for i, of in enumerate(compound) if of == name and flag[i]]
        assert (sites, bad, wells) == (len(own), len({found.sites["Metadata_Well"][i] for i in own}), len(ROWS))
    assert sum(row[1] for row in found.summary["treatments"]) == flag.sum()
    assert any("most in row A" in text for text in found.sentences) and "A strong treatment can" in found.sentences[2]


def test_what_cannot_be_read_has_the_names_of_a_site(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "P1")
    (tmp_path / "P1" / "B03_s2_w1.tif").write_bytes(b"II*")
    (tmp_path / "P1" / "C05_s1_w2.tif").unlink()
    found = check_plate(tmp_path / "P1", plate=folder / "plate.csv", against_where="compound = DMSO", workers=0)
    assert sorted(zip(*(found.skipped[name] for name in METADATA[1:]), strict=True)) == [("B03", "2"), ("C05", "1")]
    assert len(found.sites) == 178 and any("2 sites not judged: " in text for text in found.sentences)


def test_every_measurement_is_on_its_page():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "reference" / "plate_columns.md").read_text()
    assert [name for name in (*CHANNEL, *PHRASES.values()) if f"`{name}`" not in page and f"| {name} |" not in page] == []


def test_an_opened_site_has_the_range_of_its_own_plate(found):
    def brightness(result):
        image = Image.open(io.BytesIO(base64.b64decode(_images(result, range(180), [0, 179])["large"][179])))
        return np.asarray(image.convert("L")).mean()

    small = ArrayFile()
    for i, plate in enumerate(plates := ["P1"] * 90 + ["P2"] * 90):
        small.keep(i, found.small.read(i) * (4 if plate == "P2" else 1))
    both = Table({**found.sites.columns, "Metadata_Plate": plates})
    assert brightness(replace(found, sites=both, small=small, summary={"plates": ["P1", "P2"]})) < 0.6 * brightness(found)


def test_wells_are_judged_by_the_medians_of_their_sites(folder):
    found = check_plate(folder, plate=folder / "plate.csv", against_where="compound in DMSO", per="well", workers=0, fdr=0.5)
    (kinds,) = [text for text in found.sentences if "out of focus" in text]
    assert found.decisions.total == 36 and 5 <= found.decisions.flagged == sum(map(int, re.findall(r"(?:^|; )(\d+) ", kinds)))
    assert len(set(zip(found.sites["Metadata_Well"], found.column("p_value"), strict=True))) == 60


def test_a_drift_that_the_place_explains_is_said(tmp_path):
    wells = [f"{row}{column:02d}" for row in "ABCD" for column in range(1, 11)]
    for seed, well in enumerate(2 * wells):
        blurred = ndimage.gaussian_filter(scene(seed), 0.2 * int(well[1:]))
        Image.fromarray(counts(blurred, seed)).save(tmp_path / f"{well}_s{1 + seed // 40}_w1.tif")
    plate = pa.table({"well": wells, "kind": ["x", "control"] * 20})
    found = check_plate(tmp_path, plate=plate, against_where="kind = control", workers=0)
    assert any("differ by columns, most in the focus in channel 1" in text for text in found.sentences)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"against_where": "compound = water"}, "expected control wells where compound = water, found none in the plate map"),
        ({"against_where": "cmpound = DMSO"}, "found 'cmpound'; did you mean 'compound'?"),
        ({"against_where": "compound ~ DMSO"}, "expected a condition such as 'compound = DMSO', found 'compound ~ DMSO'"),
        ({"against_where": "well != x"}, "expected wells other than control wells (well != x), found none"),
        ({"plate": {"well": ["A1", "A01"], "compound": ["DMSO", "x"]}}, "expected each well in one row of the plate map"),
        ({"plate": {"well": ["A1"] * 2, "plate": ["P8", "P9"], "compound": ["DMSO", "x"]}}, "expected the plates of the plate"),
        ({"plate": {"well": ["A1", "A2", "A2"], "compound": ["DMSO", "x", "y"]}}, "one row of the plate map, found A02 in rows"),
        ({"against_where": "compound = dmso"}, "expected one spelling in compound, found DMSO, dmso"),
        ({"out": pathlib.Path(__file__)}, "cannot write to"),
        ({"against_where": "well in A1, B1"}, "expected at least 20 control sites of 2 wells on plate"),
        ({"per": "row"}, "per"),
        ({"channels": "2,1"}, "expected names of channels in the order 1, 2, found 2, 1"),
        ({"channels": "DNA,DNA"}, "expected 2 different names of channels, found DNA, DNA; name each"),
        ({"plate": {"well": ["Z1"], "compound": ["DMSO"]}}, "expected wells of the plate map such as Z01, found A01"),
        ({"plate": {"place": ["A1"], "compound": ["DMSO"]}}, "expected a column of wells in the plate map"),
    ],
)
def test_plate_maps_that_do_not_fit_are_refused(folder, change, message):
    given = {"plate": folder / "plate.csv", "against_where": "compound = DMSO", "workers": 0} | change
    given["plate"] = pa.table(given["plate"]) if isinstance(given["plate"], dict) else given["plate"]
    with pytest.raises(ValueError, match=re.escape(message)):
        check_plate(folder, **given)


def test_a_map_may_have_row_and_column_and_calls_its_plate_by_name(folder):
    row, column = np.repeat(range(1, 7), COLUMNS), np.tile(range(1, COLUMNS + 1), 6)
    plate = pa.table({"Row": row, "Col": column, "Barcode": ["B7"] * 60, "kind": column % 3 == 1})
    found = check_plate(folder, plate=plate, against_where="kind = true", workers=0, confirmed=["B7 D05 1", "B7 Z01 1"])
    assert found.summary["plates"] == ["B7"] and found.summary["control_wells"] == 24
    flag = dict(zip(found.names, found.column("flag"), strict=True))
    assert flag["B7 D05 1"] == 1 and found.decisions.total == 107 and found.summary["marks"] == {"B7 D05 1": "anomaly"}
    assert f"Plate {folder.name} is called B7, as in the plate map." in found.sentences
    assert "1 marked site is not here (first: B7 Z01 1). Name plate, well and site." in found.sentences


def test_a_map_may_have_a_row_for_each_site():
    table = pa.table({"compound": ["DMSO", "DMSO", "x"], "file": ["a", "b", "c"]})
    kept, notes = _agreeing(table, table.column_names, [("", "A01"), ("", "A01"), ("", "A02")], "compound")
    assert kept == ["compound"] and notes == ["Columns that differ within wells are left out: file."]


def test_most_sites_are_in_a_well_or_in_a_row_of_three():
    assert _place(["P"] * 4, ["A01", "A01", "A01", "B02"]) == "well A01" and _place(["P", "Q"], ["A01", "A02"]) == ""
    assert (
        _place(["P", "P", "P", "Q"], ["A01", "A02", "A03", "A04"]) == "row A of P"
        and _place(["P"] * 3, ["A01", "A02", "B01"]) == ""
    )


def test_a_site_has_a_row_for_each_channel_and_pair_with_few_or_far_pixels_too():
    for side in (1, 12, SIDE):
        x = np.stack([counts(scene(k), k)[:side, :side] for k in (1, 2)]) / np.float32(65_535)
        x[:, -1, -1] = 1_000
        row = site_quality(type("Loaded", (), {"pixels": x, "digest": 5}))
        assert [row[key].shape for key in ("channels", "pairs", "tiles")] == [(2, len(CHANNEL)), (1, 2), (2, 3, 16, 16)]
        assert all(np.isfinite(one).all() for one in row.values())
