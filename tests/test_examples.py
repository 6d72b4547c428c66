"""The examples that write what `check` found for other tools; the tools themselves need not be there."""

import io
import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import vergence
from vergence.images.review import Review

pytestmark = pytest.mark.float32
EXAMPLES = Path(__file__).parents[1] / "examples"
# Columns of Datalab (cleanlab 2.9.0), and of CleanVision 0.3.7 for exact duplicates
DATALAB = ["is_label_issue", "label_score", "is_outlier_issue", "outlier_score", "is_near_duplicate_issue"]
DATALAB += ["near_duplicate_score", "near_duplicate_sets", "is_exact_duplicates_issue", "is_dark_issue", "is_light_issue"]
DATALAB += ["is_odd_aspect_ratio_issue", "is_low_information_issue", "is_blurry_issue", "is_grayscale_issue", "is_odd_size_issue"]


def example(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What `check` found in a folder of 26 images, 24 pixels high and 32 wide, one black and two equal, and the folder."""
    folder, random = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    (folder / "a b").mkdir()
    for i, x in enumerate(random.normal(120, 12, (25, 24, 32, 3)).clip(0, 255).astype(np.uint8)):
        Image.fromarray(x * (i != 7)).save(folder / f"{i:02}.png")
    shutil.copy(folder / "00.png", folder / "a b" / "=0.png")
    return vergence.check(folder, encoder="patches", workers=0, map="pca"), folder


@pytest.fixture
def written(checked, tmp_path):
    """The files as if there were a reference: the second image is flagged and has two frames."""
    out = checked[0].write(tmp_path / "check")
    items = pq.read_table(out / "items.parquet").to_pydict()
    items["p_value"], items["flag"] = [0.5, 0.01] + [0.5] * 24, [0, 1] + [0] * 24
    items["boxes"] = ["", "6 8 18 16; 0 0 12 32"] + [""] * 24
    pq.write_table(pa.table(items), out / "items.parquet")
    (out / "summary.json").write_text(json.dumps(checked[0].summary | {"rate": "cross-conformal"}))
    return out


def test_embedding_atlas_has_thumbnails_and_neighbors_by_row(checked, written):
    example("embedding_atlas")["main"](written, checked[1])
    rows = pq.read_table(written / "atlas.parquet").to_pylist()
    assert [len(row["neighbors"]["ids"]) for row in rows] == [5] * 26 and {"projection_x", "projection_y"} < rows[0].keys()
    assert (rows[0]["neighbors"]["ids"][0], rows[0]["neighbors"]["distances"][0]) == (25, 0.0)
    assert all(row["neighbors"]["distances"] == sorted(row["neighbors"]["distances"]) for row in rows)
    assert Image.open(io.BytesIO(rows[25]["image"]["bytes"])).size == (32, 24) and rows[25]["image"]["path"] == "a b/=0.png"


def test_fiftyone_has_relative_frames(checked, written):
    fields, found = zip(*example("fiftyone_dataset")["rows"](written, checked[1]), strict=True)
    assert [box["bounding_box"] for box in found[1]] == [[0.25, 0.25, 0.25, 0.5], [0, 0, 1, 0.5]] and not any(found[2:])
    assert fields[1]["flag"] == 1 and fields[25]["duplicate_of"] == "00.png" and Path(fields[25]["filepath"]).is_file()


def test_label_studio_has_predictions_in_percent(checked, written):
    studio = example("label_studio")
    studio["tasks"](written, checked[1], "https://x/?d=")
    tasks = {task["data"]["path"]: task for task in json.loads((written / "tasks.json").read_text())}
    said = {name: task["predictions"][0]["result"] for name, task in tasks.items()}
    assert next(iter(tasks)) == "07.png" and tasks["a b/=0.png"]["data"]["image"] == "https://x/?d=a%20b/%3D0.png"
    assert [said[name][0]["value"]["choices"] for name in ("00.png", "01.png")] == [["normal"], ["anomaly"]]
    assert [said["01.png"][1]["value"][key] for key in ("x", "y", "width", "height")] == [25, 25, 25, 50]
    assert all(f'name="{result["from_name"]}" toName="image"' in studio["CONFIG"] for result in said["01.png"])
    out = checked[0].write(written / "without")  # without a reference nothing is predicted
    studio["tasks"](out, checked[1], "")
    assert not any(task["predictions"] for task in json.loads((out / "tasks.json").read_text()))


def test_label_studio_gives_marks_back(tmp_path):
    studio, tasks = example("label_studio"), []
    for name, flags in {"a.png": [0, 1], "a b/=0.png": [0], "c.png": []}.items():
        said = [{"result": [studio["rectangle"]("0 0 1 1", (2, 2)), studio["mark"](flag)]} for flag in flags]
        cancelled = {"result": [studio["mark"](1)], "was_cancelled": True}
        tasks.append({"data": {"path": name}, "annotations": [*said, cancelled]})
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    studio["confirmed"](tmp_path / "export.json", tmp_path / "confirmed.csv")
    assert Review.read(tmp_path / "confirmed.csv") == Review(["a.png"], ["a b/=0.png"], [])


def test_datalab_has_its_names_and_its_direction(checked, written):
    main = example("datalab")["main"]
    main(written)
    table = pq.read_table(written / "datalab.parquet").to_pydict()
    assert list(table) == ["path", *DATALAB[2:]] and [i for i in range(26) if table["is_outlier_issue"][i]] == [1]
    assert table["is_exact_duplicates_issue"] == table["is_near_duplicate_issue"] == [i in (0, 25) for i in range(26)]
    assert table["near_duplicate_sets"][:2] == [[25], []] and table["near_duplicate_score"][:2] == [0, 1]
    assert [i for i in range(26) if table["is_dark_issue"][i]] == [7]
    out = checked[0].write(written / "without")
    items = pq.read_table(out / "items.parquet").to_pydict() | {"label_score": [0.5] * 26, "label_flag": [0, 1] * 13}
    pq.write_table(pa.table(items), out / "items.parquet")
    main(out)
    table = pq.read_table(out / "datalab.parquet").to_pydict()
    assert set(table) == {"path", *DATALAB} and table["is_label_issue"] == [False, True] * 13
    assert table["outlier_score"][7] == 1 / 26 == min(table["outlier_score"]) and not any(table["is_outlier_issue"])


def test_profiles_of_wells_leave_flagged_sites_out():
    pytest.importorskip("pycytominer")
    import pandas as pd

    rng, n = np.random.default_rng(0), 48
    quality = pd.DataFrame({"Metadata_Plate": "P", "Metadata_Well": [f"A{i // 2:02}" for i in range(n)]})
    quality["Metadata_Site"], quality["Metadata_control"] = [str(i % 2) for i in range(n)], [int(i < 24) for i in range(n)]
    quality["ImageQuality_FocusScore_DNA"] = rng.normal(size=n)
    quality["ImageQuality_vergence_flag"] = [int(i in (30, 31, 40)) for i in range(n)]
    wells = example("plate_profiles")["profiles_of_wells"](quality)
    assert len(wells) == n / 2 - 1 and "A15" not in set(wells["Metadata_Well"])
