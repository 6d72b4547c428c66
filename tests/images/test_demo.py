"""The demo: what it prints is what is true, counted here from the files alone."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.cli.test_cli import call
from tests.factories import rows

from vergence.images.demo import DATA, SIDE, demo, planted

REAL = {"white cell", "platelet"}
ANOMALIES = {"hair", "dust", "stain", "scratch", "defocus", "negative", *REAL}


def counts(out):
    """Returns the numbers that the demo has to print, and the share of the flagged images that is normal."""
    truth = {row["path"]: row for row in rows(out / "truth.csv")}
    flagged = [truth[row["path"]]["kind"] in ANOMALIES for row in rows(out / "check" / "items.csv") if row["flag"] == "1"]
    anomalies = sum(row["kind"] in ANOMALIES for row in truth.values())
    found = Counter()
    for row in rows(out / "check" / "duplicates.csv"):
        ours = "leak" if row["source"] == "reference" else "duplicate"
        pair = [(row["path"], row["duplicate_of"]), (row["duplicate_of"], row["path"])][: 1 if ours == "leak" else 2]
        found[ours, any(truth[a]["kind"].startswith(f"{ours}, ") and truth[a]["of"] == b for a, b in pair if a in truth)] += 1
    of = Counter(row["kind"].split(", ")[0] for row in truth.values())
    pairs = [n for kind in ("duplicate", "leak") for n in (found[kind, True], of[kind], found[kind, False])]
    return [sum(flagged), anomalies, flagged.count(False), len(truth) - anomalies, *pairs], flagged.count(False) / len(flagged)


def verified(lines, out):
    """Asserts that sentences hold the true numbers, and that nothing gross is wrong; returns the share of false alarms."""
    numbers, share = counts(out)
    text = re.sub(r"; missed: [^\n]*", "", "\n".join(lines))
    assert [int(number) for number in re.findall(r"\d+", text)] == numbers
    hit, anomalies, *_ = numbers
    assert hit >= 0.6 * anomalies and numbers[6] == numbers[9] == 0 and share <= 0.3
    return share


def test_the_data_are_free_small_and_say_where_tiles_lie():
    assert "MIT License" in (DATA / "LICENSE").read_text() and sum(path.stat().st_size for path in DATA.iterdir()) <= 1.2e6
    tiles = rows(DATA / "tiles.csv")
    assert {row["kind"] for row in tiles} == {"normal", *REAL} and len({row["photograph"] for row in tiles}) == 90
    for name in {row["photograph"] for row in tiles}:
        xy = np.array(
            [(int(row["left"]), int(row["top"])) for row in tiles if row["photograph"] == name and row["kind"] == "normal"]
        )
        apart = np.abs(xy[:, None] - xy).max(2) >= SIDE
        assert (xy >= 0).all() and (xy <= np.array([320, 240]) - SIDE).all() and apart[~np.eye(len(xy), dtype=bool)].all()


def test_the_demo_prints_what_is_true(tmp_path):
    found = call("demo", "--out", tmp_path / "demo", "--encoder", "patches")
    lines = found.stdout.splitlines()
    assert found.returncode == 0 and len(lines) <= 14 and len(rows(tmp_path / "demo" / "truth.csv")) == 92
    verified(lines[next(i for i, line in enumerate(lines) if line.startswith("Anomalies: ")) : -2], tmp_path / "demo")
    assert (
        call(
            "calibrate", *(tmp_path / "demo" / f"{part}_scores.csv" for part in ("reference", "new")), "--out", tmp_path / "f.csv"
        ).returncode
        == 0
    )
    flagged = [row["path"] for row in rows(tmp_path / "f.csv") if row["flag"] == "1"]
    kinds = {row["path"]: row["kind"] for row in rows(tmp_path / "demo" / "truth.csv")}
    true = f"{sum(kinds[path] in ANOMALIES for path in flagged)} of {len(flagged)} are anomalies"
    assert true in (Path(__file__).parents[2] / "README.md").read_text()
    files = {path.name: np.asarray(Image.open(path)).tobytes() for path in (tmp_path / "demo").glob("[rn]e*/*.png")}
    same = {(row["path"], row["of"]) for row in rows(tmp_path / "demo" / "truth.csv") if row["kind"].endswith(", exact")}
    assert len({*files.values()}) == len(files) - len(same) and all(files[a] == files[b] for a, b in same)


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(ValueError, match="an earlier demo"):
        demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("encoder", ["auto", "patches"])
def test_the_demo_is_true_for_five_seeds(tmp_path, encoder):
    shares = []
    for seed in range(5):
        out = Path(tmp_path / str(seed))
        shares.append(verified(planted(demo(out, encoder=encoder, seed=seed), out), out))
    assert np.mean(shares) <= 0.12
