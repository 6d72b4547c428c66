"""Run folders of strangers: no markup of theirs reaches the page, and no value of a wrong type ends in a traceback."""

import csv
import dataclasses
import html.parser
import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.report import fixtures_report as fixtures

from vergence.advice.page import write_advice
from vergence.advice.views import advise
from vergence.learn.runs.page import write_report

MARKUP = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7 * 7 }}"
ODD = [None, "x", -1, float("nan"), float("inf"), 10**400, True, [], {}, [[]], {"a": {"b": 1}}]


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def require_clean(text):
    """The page has its own scripts, no handlers, no images but its own, and no tag within the JSON."""
    tags = Tags()
    tags.feed(text)
    assert [attributes.get("id") for tag, attributes in tags.found if tag == "script"] in (["items", None], [None])
    assert not [name for _, attributes in tags.found for name in attributes if name.startswith("on")]
    assert all(a.get("src", "data:").startswith("data:") for _, a in tags.found)
    assert "<script>alert" not in text and "<img src=x" not in text and "49" not in re.findall(r">(\d+)<", text)
    assert not any(re.search("[<>&']", record) for record in re.findall(r'id="items">(.*?)</script>', text, re.S))


def planted(value, keys=False):
    """A copy with markup at the end of every string; with ``keys`` at the end of every name too."""
    if isinstance(value, dict):
        return {key + MARKUP if keys else key: planted(entry, keys) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [planted(entry, keys) for entry in value]
    return value + MARKUP if isinstance(value, str) else value


def evaluation():
    """A small one with every kind of entry."""
    whole = fixtures.evaluation()
    for name in ("mu", "untrained", "pca"):
        del whole["representations"][name]
    for entry in whole["representations"].values():
        entry["knn"] = {"30": entry["knn"]["30"]}
    for name in ("directional", "entropy", "knn distance on pixels"):
        del whole["anomaly"]["scores"][name]
    return whole | {"anomaly": whole["anomaly"] | {"inliers": ["0"]}}


def examples(n=30):
    data = fixtures.examples(n)
    data["name"] = np.array([MARKUP] * n)
    return data


def hostile_skipped(run):
    with (run / "skipped.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["name", "reason"], [MARKUP, MARKUP]])
    return run


@pytest.mark.slow
def test_markup_in_every_text_of_every_file(tmp_path):
    config = fixtures.config()
    for part, names in {"data": ["source"], "model": ["objective"], "metadata": ["note", "device", "commit"]}.items():
        config[part] |= dict.fromkeys(names, MARKUP)
    config["metadata"]["classes"] = [MARKUP] * 10
    config["model"]["options"] = {MARKUP: MARKUP}
    found = fixtures.evaluation()
    found["protocol"] |= {"note": MARKUP, "objective": MARKUP}
    found["representations"] |= {MARKUP: found["representations"]["z"]}
    found["anomaly"]["scores"] |= {MARKUP: found["anomaly"]["scores"]["joint"]}
    found["anomaly"] |= {"inliers": [MARKUP] * 9, "anomalies": [MARKUP]}
    rows = [row | {name + MARKUP: value for name, value in row.items()} for row in fixtures.metrics()]
    run = fixtures.write_run(tmp_path / "<b>run", config=config, rows=rows, evaluation=found, examples=examples())
    text = write_report(hostile_skipped(run)).read_text(encoding="utf-8")
    assert "damaged" not in text
    assert text.count("alert(1)") > 150
    require_clean(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config", "evaluation"])
def test_markup_in_the_place_of_every_value(tmp_path, name):
    parts = {"config": fixtures.config(), "evaluation": evaluation()}
    parts["config"]["metadata"]["classes"] = ["a", "b"]
    parts["config"]["data"]["keep_classes"] = [0]
    for path in fixtures.nodes(parts[name]):
        run = fixtures.write_run(tmp_path / "run", **parts | {name: fixtures.changed(parts[name], path, MARKUP)})
        try:
            text = write_report(run).read_text(encoding="utf-8")
        except ValueError as error:
            assert name == "config" and "is damaged" in str(error) and "\n" not in str(error)
        else:
            require_clean(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config", "evaluation"])
def test_one_wrong_value_gives_a_sentence(tmp_path, name):
    parts = {"config": fixtures.config(), "evaluation": evaluation()}
    parts["config"]["data"]["keep_classes"] = [0]
    parts["config"]["metadata"]["classes"] = ["a"]
    for path in fixtures.nodes(parts[name]):
        for value in ODD:
            run = fixtures.write_run(tmp_path / "run", **parts | {name: fixtures.changed(parts[name], path, value)})
            try:
                write_report(run)
            except ValueError as error:
                assert name == "config" and "is damaged" in str(error) and "\n" not in str(error), (path, value)


@pytest.mark.slow
def test_the_sentence_names_the_wrong_value(tmp_path):
    found = fixtures.changed(evaluation(), ("representations", "z", "probe", "accuracy"), "much")
    text = write_report(fixtures.write_run(tmp_path / "run", config=fixtures.config(), evaluation=found)).read_text()
    assert "Evaluation.representations.z.probe: expected accuracy to be a number, found &#39;much&#39;" in text
    config = fixtures.changed(fixtures.config(), ("metadata", "n_train"), "many")
    with pytest.raises(ValueError, match="n_train"):
        write_report(fixtures.write_run(tmp_path / "run", config=config))


WRONG_ARRAYS = {
    "labels are text": {"label": np.array(["a"] * 30)}, "labels are huge": {"label": np.full(30, 2**62)},
    "scores are text": {"score": np.array(["a"] * 30)}, "scores have an axis too many": {"score": np.zeros((30, 2), np.float32)},
    "names are numbers": {"name": np.arange(30)}, "coordinates are three": {"xy": np.zeros((30, 3))},
    "coordinates are flat": {"xy": np.zeros(30)}, "neighbors are not there": {"neighbors": np.full((2, 3), 30)},
    "neighbors are negative": {"neighbors": np.full((2, 3), -1)}, "neighbors are fractions": {"neighbors": np.zeros((2, 3))},
    "pictures are floats": {"thumbnail": np.zeros((30, 1, 4, 4), np.float32)},
    "pictures are empty": {"thumbnail": np.zeros((30, 1, 0, 4), np.uint8)},
    "pictures are too few": {"thumbnail": np.zeros((3, 1, 4, 4), np.uint8)},
    "anomalous is a scalar": {"anomalous": np.array(True)}, "coordinates are a scalar": {"xy": np.array(1.0)},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_arrays_of_the_wrong_kind_are_left_out_and_reported(tmp_path, case):
    run = fixtures.write_run(tmp_path / "run", config=fixtures.config(), examples=examples() | WRONG_ARRAYS[case])
    assert "examples.npz is damaged and left out" in write_report(run).read_text()


@pytest.mark.slow
def test_archives_that_claim_to_be_enormous_are_left_out(tmp_path):
    run = fixtures.write_run(tmp_path / "run", config=fixtures.config())
    with (run / "examples.npz").open("wb") as file:
        np.savez_compressed(file, xy=np.zeros(2**28, np.uint8))
    assert "examples.npz is damaged and left out (expected at most" in write_report(run).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("depth", [500, 900, 2_000, 100_000])
def test_deeply_nested_files(tmp_path, depth):
    deep = "[" * depth + "]" * depth
    run = fixtures.write_run(tmp_path / "run", config=fixtures.config())
    (run / "evaluation.json").write_text('{"posterior": ' + deep + "}")
    (run / "metrics.jsonl").write_text('{"loss": ' + deep + "}\n")
    write_report(run)
    (run / "config.json").write_text(json.dumps(fixtures.config())[:-1] + ', "fit": {"a": ' + deep + "}}")
    try:
        write_report(run)
    except ValueError as error:
        assert "is damaged" in str(error) and "\n" not in str(error)


@pytest.mark.slow
def test_half_a_surrogate_pair_is_replaced(tmp_path):
    config = fixtures.config(data={"source": "\ud800 photographs"})
    assert "? photographs" in write_report(fixtures.write_run(tmp_path / "run", config=config)).read_text(encoding="utf-8")


@pytest.mark.slow
def test_markup_in_every_string_of_an_advice(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6))
    parts = {"a": lambda X, g: X * 0.9, "b": lambda X, g: X + 0.5 * X.new_tensor(rng.normal(size=X.shape))}
    advice = advise(x, parts, n_components=2, n_draws=4)
    facts = dataclasses.replace(advice.facts, part=MARKUP)
    rows = tuple(dataclasses.replace(row, operation=MARKUP) for row in advice.augmentations)
    hostile = dataclasses.replace(advice, facts=facts, augmentations=rows, words=(MARKUP,) * 3)
    path = write_advice(hostile, tmp_path / "report.html", name=MARKUP, command=MARKUP)
    text = path.read_text(encoding="utf-8")
    assert text.count("alert(1)") == 9
    require_clean(text)


@pytest.mark.slow
def test_templates_escape_everything_but_our_own_files():
    source = Path(__file__).parents[2] / "src" / "vergence"
    files = sorted((source / "report" / "templates").rglob("*.html"))
    text = "".join(file.read_text() for file in files)
    assert len(files) > 10 and "autoescape" not in text
    assert set(re.findall(r"(\w+) \| safe", text)) == {"allowed", "style", "script"}
    makers = [file for file in source.rglob("*.py") if "report.rendering import" in file.read_text()]
    assert len(makers) >= 4 and not [
        file.name for file in makers if re.search(r"</?(p|div|b|table|h\d)\b|Markup", file.read_text())
    ]


@pytest.mark.slow
def test_an_archive_of_strange_members_is_left_out_with_a_sentence(tmp_path):
    run = fixtures.write_run(tmp_path / "run", config=fixtures.config(), rows=fixtures.metrics(), examples=fixtures.examples(30))
    whole = (run / "examples.npz").read_bytes()
    encrypted = bytearray(whole)
    for at in [m.start() for m in re.finditer(rb"PK\x01\x02", whole)]:
        encrypted[at + 8] |= 1
    with np.load(run / "examples.npz") as found:
        arrays = dict(found)
    (run / "examples.npz").write_bytes(encrypted)
    assert "examples.npz is damaged" in write_report(run).read_text(encoding="utf-8")
    np.savez(run / "examples.npz", **arrays | {"name": np.array([{}] * len(arrays["name"]), dtype=object)})
    assert "examples.npz is damaged" in write_report(run).read_text(encoding="utf-8")
