"""The service: the decisions of `calibrate`, row by row; limits, hostile bodies and metrics, by a client of the application."""

import base64
import json

import numpy as np
import pytest
from tests.factories import png

import vergence
from vergence.decide import Calibrated, GaussianDetector, calibrate

pytest.importorskip("starlette")
pytest.importorskip("httpx")
import pyarrow as pa
from sklearn.ensemble import IsolationForest
from starlette.testclient import TestClient
from tests.refusals import refuses

from vergence.decide.service import Service, by_columns, by_detector

RNG = np.random.default_rng(0)
GOOD = RNG.normal(size=999)


def client(calibration=GOOD, judges=None, **settings):
    return TestClient(Service(calibration, judges or {}, **settings).app())


def test_posted_scores_have_the_decisions_of_calibrate():
    new = np.r_[RNG.normal(size=40), 9.0, 9.5]
    found = client().post("/scores", json={"scores": new.tolist(), "names": [f"<b>{i}" for i in range(42)]})
    assert found.status_code == 200 and found.headers["content-type"] == "application/json"
    items, expected = found.json()["items"], calibrate(GOOD, new)
    assert [item["p_value"] for item in items] == expected.p_value.tolist()
    assert [item["flag"] for item in items] == expected.flag.tolist()
    assert [item["alarm"] for item in items] == (expected.p_value <= 0.01).tolist()
    assert found.json()["sentences"] == expected.sentences and items[3]["name"] == "<b>3"
    assert client().post("/scores", json={"scores": []}).json()["items"] == []


def test_alarms_of_single_items_have_their_level_or_certificate():
    of = client(alarm=0.05)
    alarms = [of.post("/scores", json={"scores": [s]}).json()["items"][0]["alarm"] for s in RNG.normal(size=200)]
    assert 2 <= sum(alarms) <= 20
    with_fpr = client(fpr=0.01)
    assert "at most 0.92 % of normal items" in with_fpr.get("/health").json()["alarm"]
    assert [x["alarm"] for x in with_fpr.post("/scores", json={"scores": [0.0, 9.0]}).json()["items"]] == [False, True]
    refuses("at least 99 calibration scores", Service, GOOD[:50], {})
    refuses("differ", Service, np.zeros(200), {})


def test_rows_that_are_no_numbers_have_an_error_and_stop_nothing():
    body = '{"scores": [0.5, NaN, null, "9", true, 1e999, [1], {"a": 1}, %s]}' % ("9" * 400)
    items = client().post("/scores", content=body, headers={"content-type": "application/json"}).json()["items"]
    assert [bool(item["error"]) for item in items] == [False] + [True] * 8
    assert items[1]["p_value"] is None


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{", JSON, 400),
        (b"\xff\xfe", JSON, 400),
        (b"[" * 100_000, JSON, 400),
        (b"\x1f\x8b" + bytes(100), JSON, 400),
        (b'{"scores": [%s]}' % (b"9" * 5000), JSON, 400),
        (b"[]", JSON, 422),
        (b'{"scores": 1}', JSON, 422),
        (b'{"vectors": [[1]]}', JSON, 422),
        (b'{"scores": [1], "more": 1}', JSON, 422),
        (b'{"scores": [1], "names": ["a", "b"]}', JSON, 422),
        (b'{"scores": [1], "names": ["\\ud800"]}', JSON, 422),
        (json.dumps({"scores": GOOD[:600].tolist()}).encode(), JSON, 422),  # those that calibrate
        (json.dumps({"scores": [0] * 1001}).encode(), JSON, 413),
        (b" " * (2 << 20), JSON, 413),
        (b'{"scores": [1]}', {"content-type": "text/plain"}, 415),
        (b'{"scores": [1]}', {}, 415),
    ],
    ids=lambda value: str(value)[:20],
)
def test_wrong_bodies_are_refused_in_one_line(content, headers, status):
    of = client(megabytes=1)
    found = of.post("/scores", content=content, headers=headers)
    assert found.status_code == status and "expected" in found.json()["error"] and "\n" not in found.json()["error"]
    assert f'vergence_requests_total{{path="/scores",status="{status}"}} 1.0' in of.get("/metrics").text
    assert of.get("/scores").status_code == 405 and of.post("/nowhere").status_code == 404
    assert of.post("/scores", json={"scores": [1.5]}).status_code == 200


def test_metrics_count_and_a_change_is_told():
    of = client()
    for _ in range(20):
        of.post("/scores", json={"scores": [*RNG.normal(-2, 1, 9).tolist(), None]})
    lines = dict(line.rsplit(" ", 1) for line in of.get("/metrics").text.splitlines() if not line.startswith("#"))
    assert lines["vergence_items_total"] == "200.0" and lines["vergence_errors_total"] == "20.0"
    assert lines["vergence_drift_alarm"] == "1.0" and float(lines["vergence_drift_log_wealth"]) > 4.6
    assert of.get("/health").json()["monitor"]["drift"] == "lower scores"


def test_a_saved_detector_scores_vectors(tmp_path):
    x = RNG.normal(size=(900, 3))
    Calibrated(GaussianDetector()).fit(x).save(tmp_path / "c.safetensors")
    model = Calibrated.load(tmp_path / "c.safetensors")
    of, new = client(model.calibration_, {"vectors": by_detector(model)}), RNG.normal(size=(4, 3))
    rows = [*new.tolist(), [9, 9, 9], [1, 2], [None] * 3, "abc", {"path": "/"}]
    items = of.post("/vectors", json={"vectors": rows}).json()["items"]
    assert [item["score"] for item in items[:4]] == pytest.approx(model.scores(new).tolist())
    assert items[4]["alarm"] and [bool(item["error"]) for item in items] == [False] * 5 + [True] * 4


def test_what_cannot_be_saved_says_what_can(tmp_path):
    model = Calibrated(IsolationForest(n_estimators=10)).fit(RNG.normal(size=(100, 2)))
    refuses(r"of this library.*IsolationForest.*calibration_", model.save, tmp_path / "x.safetensors")


@pytest.mark.float32
def test_a_run_judges_images_and_nothing_is_opened(images, tmp_path):
    scorer = vergence.Scorer(images)
    detector, shape = images.detector(), images.folder.metadata.item_shape()
    of = client(detector.calibration, {"images": by_columns(scorer, (), shape)})
    pixels = RNG.integers(0, 256, (8, 8), dtype=np.uint8)
    (tmp_path / "x.png").write_bytes(png(pixels))
    bomb = png(np.zeros((9000, 9000), np.uint8))
    rows = [png(pixels), png(pixels)[:40], b"PK\3\4" + bytes(99), bomb, bomb, bomb]
    texts = [*(base64.b64encode(row).decode() for row in rows), str(tmp_path / "x.png"), {"path": str(tmp_path / "x.png")}, 5]
    items = of.post("/images", json={"images": texts}).json()["items"]
    assert items[0]["score"] == pytest.approx(float(scorer({"image": [png(pixels)]})["score"][0]), rel=1e-5)
    assert [bool(item["error"]) for item in items] == [False, True, True, False, False, True, True, True, True]
    one = of.post("/images", content=png(pixels), headers={"content-type": "image/png"}).json()["items"]
    assert one[0]["p_value"] == items[0]["p_value"]


@pytest.mark.float32
def test_a_run_on_vectors_and_one_on_named_features(table, tmp_path):
    shape = table.folder.metadata.item_shape()
    of = client(table.detector().calibration, {"vectors": by_columns(vergence.Scorer(table), (), shape)}, alarm=0.1)
    items = of.post("/vectors", json={"vectors": [[0] * 5, [0] * 4, "/etc", {"path": "x"}]}).json()["items"]
    assert [bool(item["error"]) for item in items] == [False, True, True, True]
    rows = {"a": RNG.normal(size=300), "color": RNG.choice(["red", "blue"], 300).tolist()}
    run = vergence.train(pa.table(rows), objective="vje", encoder="mlp", epochs=1, device="cpu", out=tmp_path / "run")
    named = by_columns(vergence.Scorer(run), run.folder.metadata.columns, (3,))
    of = client(run.detector().calibration, {"vectors": named}, alarm=0.1)
    items = of.post("/vectors", json={"vectors": [{"a": 0.1, "color": "red"}, {"a": None, "color": "red"}, 3]}).json()["items"]
    assert [bool(item["error"]) for item in items] == [False, True, True]
    assert of.post("/vectors", json={"vectors": [{"a": 1}, {"a": "b"}]}).status_code == 422
