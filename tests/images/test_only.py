"""Duplicates and plain properties alone, what to keep of them, names on standard input, and names that are hard to write."""

import io
import re
import sys
import tarfile
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageFilter, ImageOps
from pyarrow import csv as arrow
from pyarrow import parquet
from tests.factories import rows
from tests.images.test_duplicates import saved, textured
from tests.refusals import refuses

import vergence
from vergence.cli.commands import main
from vergence.data.images import listing
from vergence.images.review import Review

pytestmark = pytest.mark.float32
BOTH, PATHS = ("duplicates", "properties"), ("path", "duplicate_of", "keep")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """30 images, five changed duplicates, two dark images and a file that cannot be read."""
    root = tmp_path_factory.mktemp("only") / "in"
    root.mkdir()
    for i in range(30):
        textured(i, (96, 128) if i else (192, 256)).save(root / f"image{i:02d}.png")
    for i in range(2):
        Image.fromarray(np.asarray(textured(50 + i)) // 8).save(root / f"dark{i}.png")
    textured(0, (192, 256)).resize((128, 96)).save(root / "a_small.png")
    textured(1).filter(ImageFilter.GaussianBlur(1.5)).save(root / "a_blurred.png")
    saved(textured(2), 60).convert("RGB").save(root / "a_saved.jpg", quality=40)
    ImageOps.mirror(textured(3)).save(root / "a_mirrored.png")
    textured(4).save(root / "z_equal.png", compress_level=1)
    (root / "broken.jpg").write_text("no image")
    return root


def test_parts_are_those_of_the_whole_and_need_no_network(folder, monkeypatch):
    whole = vergence.check(folder, encoder="patches", workers=0)
    monkeypatch.setattr("vergence.images.check.at_hand", lambda: pytest.fail("a network was loaded"))
    part = vergence.check(folder, only=BOTH, workers=0)
    assert part.duplicates.columns == whole.duplicates.columns and len(part.duplicates) == 5
    assert all(part.items[name] == whole.items[name] for name in ("path", "duplicate_of", "measurements"))
    assert part.skipped["path"] == ["broken.jpg"] and any("dark" in one for one in part.items["measurements"])
    assert not part.summary["judged"] and part.embeddings.shape == (37, 0) and part.summary["encoder"] == "none"
    one, other = (vergence.check(folder, only=name, workers=0) for name in BOTH)
    assert one.duplicates.columns == part.duplicates.columns and not any(one.items["measurements"])
    assert other.items["measurements"] == part.items["measurements"] and not len(other.duplicates)


def test_the_best_of_each_set_is_kept_and_nothing_is_deleted(folder, tmp_path):
    files = sorted(folder.iterdir())
    found = vergence.check(folder, only=BOTH, keep="best", out=tmp_path / "out", workers=0)
    kept = {
        "a_small.png": "image00.png", "a_blurred.png": "image01.png", "a_saved.jpg": "image02.png", "image04.png": "z_equal.png",
    }  # fmt: skip
    assert dict(zip(found.remove["path"], found.remove["keep"], strict=True)) == kept and sorted(folder.iterdir()) == files
    assert found.remove["kind"] == [["near", "exact"][path == "image04.png"] for path in found.remove["path"]]
    assert "remove.csv lists 4 duplicates to remove; the best of each set stays. Nothing was deleted." in found.sentences
    assert [row["keep"] for row in rows(tmp_path / "out" / "remove.csv")] == found.remove["keep"]
    keep = [(row["kind"], row["keep"]) for row in rows(tmp_path / "out" / "duplicates.csv")]
    assert ("mirrored", "") in keep and {name for _, name in keep} == {"", *kept.values()}
    vergence.check([np.asarray(textured(0))], only=BOTH, keep="best", out=tmp_path / "one", workers=0)
    assert (tmp_path / "one" / "remove.csv").read_text().split() == ["path,keep,kind"]


def test_only_pairs_that_agree_enough_are_reported(folder):
    every = vergence.check(folder, only="duplicates", workers=0).duplicates
    least = float(np.median(every["agreement"]))
    some = vergence.check(folder, only="duplicates", agreement=least, workers=0)
    assert list(some.duplicates["agreement"]) == [a for a in every["agreement"] if a >= least] and 0 < len(some.duplicates) < 5
    assert sum(map(bool, some.items["duplicate_of"])) == len(some.duplicates)
    assert "exact" in vergence.check(folder, only="duplicates", agreement=1, workers=0).duplicates["kind"]


REFUSED = {
    "agreement in ": {"agreement": 0}, "agreement in (0, 1]": {"agreement": 1.5}, "`keep='best'`": {"keep": "first"},
    "duplicates for keep and agreement": {"only": "properties", "keep": "best"}, "`only` of duplicates": {"only": "faces"},
    "only duplicates with a reference": {"only": "properties", "against": [np.zeros((8, 8))]},
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_is_refused(words):
    refuses(re.escape(words), vergence.check, [np.zeros((8, 8))], **REFUSED[words])
    refuses("images with these options", vergence.check, np.eye(4), keep="best")


@pytest.mark.parametrize("end", ["\n", "\0"])
def test_names_come_from_standard_input(end, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    names = ["./image00.png", "a_small.png", str(folder / "image05.png")]
    for more, text in (([], end.join(names) + end), (["--against", names[2], "--leaks"], end.join(names))):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
        main(["check", "-", "--only", "duplicates", "--out", str(tmp_path / "o"), "--workers", "1", *more])
        assert "\nDuplicates are equal images, or resized" in capsys.readouterr().out  # the condition is the second line
        assert [row["path"] for row in rows(tmp_path / "o" / "items.csv")] == names
    assert [row["leak_of"] for row in rows(tmp_path / "o" / "items.csv")] == ["", "", "image05.png"]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\n")))
    with pytest.raises(SystemExit):
        main(["check", "-", "--out", str(tmp_path / "o")])
    assert "names of images on standard input" in capsys.readouterr().err


def test_names_in_all_tables_are_paths_and_tables_without_rows_have_columns(tmp_path):
    names = ["-a.png", "+a.png", "=a.png", "@a.png", "'=a.png", "שלום مرحبا.png", "n" * 196 + ".png", "-inner/=b.png"]
    root = tmp_path / "in"
    (root / "-inner").mkdir(parents=True)
    for i, name in enumerate(names):
        for k in ("", "z"):
            textured(i).save(root / (name if not k else f"-z{i}.png"))
    out = tmp_path / "out"
    found = vergence.check(root, only=BOTH, keep="best", out=out, workers=0)
    assert {*names} < {*found.items["path"]} == {*parquet.read_table(out / "items.parquet")["path"].to_pylist()}
    every = [row for name in ("items", "duplicates", "remove") for row in rows(out / f"{name}.csv")]
    written = [row[key] for row in every for key in row if key in PATHS]
    assert all((root / path).is_file() for path in written if path) and not any(path[:1] in "=+-@" for path in written if path)
    (tmp_path / "marks.csv").write_text("".join(f"{row['path']},anomaly\n" for row in rows(out / "items.csv")), encoding="utf-8")
    assert Review.read(tmp_path / "marks.csv").anomaly == found.items["path"]
    assert arrow.read_csv(out / "skipped.csv").column_names == ["path", "reason"]


def test_an_image_that_is_named_twice_is_read_once_and_a_folder_of_none_is_refused(tmp_path):
    refuses(r"images in .*found none", vergence.check, tmp_path)
    textured(0).save(tmp_path / "a.png")
    (tmp_path / "link.png").symlink_to("a.png")
    (tmp_path / "t.csv").write_text("file\na.png\n./a.png\na.png\nlink.png\n")
    for settings in ({"only": BOTH, "keep": "best"}, {"encoder": "patches"}):
        found = vergence.check(tmp_path / "t.csv", workers=0, **settings)
        assert found.items["path"] == ["a.png"] and not len(found.duplicates) and not found.summary["judged"]
        assert found.skipped["reason"] == ["named before, and read once"] * 3 and not (found.remove and len(found.remove))


def test_links_in_a_tar_are_listed_and_not_followed(tmp_path):
    textured(0).save(tmp_path / "a.png")
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        tar.add(tmp_path / "a.png", "a.png")
        for name, kind, to in (("hard.png", tarfile.LNKTYPE, "a.png"), ("out.png", tarfile.SYMTYPE, "/etc/hostname")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, to
            tar.addfile(member)
    found = vergence.check(tmp_path / "t.tar", only=BOTH, workers=0)
    assert found.items["path"] == ["a.png"] and found.skipped["path"] == ["hard.png", "out.png"]
    assert found.skipped["reason"][1] == "a link to /etc/hostname; links in a tar are not followed"


def test_classes_with_numbers_for_names_are_in_the_order_of_numbers(tmp_path):
    for k in range(12):
        (tmp_path / str(k)).mkdir()
        Image.new("L", (8, 8), k).save(tmp_path / str(k) / "a.png")
    source = listing(tmp_path)
    assert [int(name.split("/")[0]) for name in source.items.names] == source.items.labels.tolist()
