"""The report page: its numbers are the files', names are data, parts may be missing, and a browser draws it offline."""

import base64
import html
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from tests.refusals import refuses
from tests.report import fixtures_report as fixtures

from vergence.learn.runs.page import write_report
from vergence.learn.runs.tables import tables
from vergence.learn.training.records import Evaluation

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def whole(run, **changes):
    parts = {"config": fixtures.config(), "rows": fixtures.metrics(), "evaluation": fixtures.evaluation()}
    return fixtures.write_run(run, **parts | {"examples": fixtures.examples()} | changes)


def page(run):
    return write_report(run).read_text(encoding="utf-8")


def steps(text):
    """What the map's slider steps through."""
    return json.loads(re.search(r'<script type="application/json" id="items">(.*?)</script>', text, re.S)[1])


def drawing(text, name):
    """The chart of a name: (position, title) of every mark, by series."""
    svg = re.search(rf'data-figure="{name}".*?</svg>', text, re.S)[0]
    mark = r'<path class="mark"[^>]*translate\(([-\d.]+),([-\d.]+)\)"[^>]*><title>(.*?)</title>'
    return [
        [(float(x), float(y), html.unescape(title)) for x, y, title in re.findall(mark, series)]
        for series in svg.split('<g class="series"')[1:]
    ]


def plain(text):
    text = re.sub(r"<(script|style).*?</\1>", " ", text, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def rows(text, label):
    body = re.search(rf'aria-label="{label}"><table.*?<tbody>(.*?)</tbody>', text, re.S)[1]
    return [[plain(cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)] for row in re.findall(r"<tr>(.*?)</tr>", body)]


def test_the_command_that_reproduces_a_run_sets_the_threads_that_trained(tmp_path):
    known, unknown = (
        page(whole(tmp_path / name, rows=[{"step": 1, **more}])) for name, more in (("a", {"threads": 3}), ("b", {}))
    )
    assert "out=sys.argv[2], threads=3)" in known and "(3, which the command sets)" in known
    assert "out=sys.argv[2])" in unknown and "(setting <code>threads</code>)" in unknown


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return page(whole(tmp_path_factory.mktemp("runs") / "demo"))


def test_tables_are_the_records_and_the_best_is_bold(full):
    shown = tables(Evaluation.from_dict(fixtures.evaluation()))
    for table in shown.values():
        tags = {"model": "", "baseline": " baseline"}
        expected = [[name + tags[kind], *(c.text(name) for c in table.columns)] for name, kind in table.kinds.items()]
        assert [row[: len(table.columns) + 1] for row in rows(full, re.escape(table.title))] == expected
    body = re.search(r'aria-label="anomalies:[^"]*">(.*?)</table>', full, re.S)[1]
    assert re.findall(r"<td><b>(.*?)</b>", body) == ["91.4 %", "31.2 %", "66.0 %"]  # fewest false alarms are best


def test_the_lead_and_the_sections_judge_alike(full, tmp_path):
    lead = plain(re.search(r'<div class="lead">(.*?)</div>', full, re.S)[1])
    assert "94.0 % of the test items get the right class (kNN 30) with z. The best baseline, pca, reaches 90.9 %." in lead
    assert "91.4 % is the AUROC of anomalies with joint. The best baseline, knn distance on z, reaches 88.7 %." in lead
    assert "labels only chose the 9 classes" in lead and "A baseline is better" not in plain(full)
    evaluation = fixtures.evaluation()
    evaluation["representations"]["pca"] = fixtures.representation("baseline", 64, 0.999, 0.999)
    text = plain(page(whole(tmp_path / "run", evaluation=evaluation)))
    assert "A baseline is better than the model in 10 of 10 columns: pca in kNN 1" in text and "The baseline is better." in text


def linear(places, values):
    """Positions are the values on a linear axis: to a tenth of a pixel."""
    share = np.polyfit(values, places, 1)
    assert abs(np.polyval(share, values) - places).max() < 0.15
    return share[0]


def test_curves_are_the_files(full):
    metrics = fixtures.metrics()
    keys = dict(re.findall(r'<h3>([^<]*) <small>.*?</small></h3><div class="figure" data-figure="(curve\d+)"', full))
    for title, name in {"Loss": "loss", "kl": "kl", "Effective rank": "effective_rank", "Online kNN accuracy": "knn"}.items():
        points = [(row["epoch"], row[name]) for row in metrics if name in row]
        ((x, y, titles),) = (zip(*marks, strict=True) for marks in drawing(full, keys[title]))
        assert list(titles) == [f"{title}: {v:.5g} at {epoch:.5g}" for epoch, v in points]
        assert linear(x, [epoch for epoch, _ in points]) > 0 > linear(y, [v for _, v in points])
    assert len(keys) == 9 and not {"seconds", "Learning rate", "Threads", "Items per second"} & {*keys}


def test_map_and_thumbnails_are_the_files(full):
    data, shown = fixtures.examples(), steps(full)
    by_label = drawing(full, "map")
    assert len(by_label) == 10 and sum(map(len, by_label)) == 240
    index = {caption: i for i, (_, caption) in enumerate(shown["items"])}
    places = np.array([(x, y, index[title]) for series in by_label for x, y, title in series])
    for marks, label in zip(by_label, fixtures.CLASSES, strict=True):
        assert {data["label"][index[title]] for *_, title in marks} == {int(label)}
    chosen = places[:, 2].astype(int)
    assert linear(places[:, 0], data["xy"][chosen, 0]) > 0 > linear(places[:, 1], data["xy"][chosen, 1])
    assert shown["order"] == sorted(range(240), key=lambda i: -data["score"][i])
    colors = dict(re.findall(r'data-item="(\d+)" style="--score:(#\w{6})"', full))
    bright = {int(i): int(color[1:3], 16) for i, color in colors.items()}
    assert len(bright) == 240 and bright[shown["order"][0]] == 254 and bright[shown["order"][-1]] == 0
    np.testing.assert_array_equal(pixels(shown["items"][17][0]), data["thumbnail"][17, 0])


def pixels(url):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,")))))


def test_gallery_is_in_order_of_the_score(full):
    most, least = re.search(r"<h3>Most anomalous</h3>(.*?)<h3>Least anomalous</h3>(.*?)</section>", full, re.S).groups()
    data = fixtures.examples()
    order = np.argsort(-data["score"], kind="stable")
    for part, expected in ((most, order[:18]), (least, order[::-1][:18])):
        assert re.findall(r'alt="([^:]*):', part) == [data["name"][i] for i in expected]
    assert most.count("held out as an anomaly") == 2 * data["anomalous"][order[:18]].sum() > 0  # alt and title


def test_neighbor_rows_say_what_differs(full):
    data = fixtures.examples()
    label = data["label"][data["neighbors"]]
    same = (label[:, 1:] == label[:, :1]).sum()
    assert f"% have the label of their query ({same} of {label[:, 1:].size})" in plain(full)
    assert full.count("<figure class=other>") == label[:, 1:].size - same


def test_nothing_is_loaded_from_elsewhere(full):
    assert re.findall(r"""(?:src|href|action|data)\s*=\s*["']?(?!data:|#|items\.html)[^"'\s>]+""", full.split("<script")[0]) == []
    assert not re.search(r"<(link|iframe|object|embed|base|form)\b|@import|url\(|https?://", full)
    assert "default-src 'none'" in full


def test_images_have_words(full):
    assert len(re.findall(r"<img ", full)) > 40
    assert re.findall(r'<img (?![^>]*alt="[^"]+")(?!id="seen")', full) == []
    assert re.findall(r'role="img" aria-label=""', full) == []
    assert re.search(r'<html lang="en">', full) and 'name="viewport"' in full


ABSENT = {
    "rows": "There are no training curves",
    "evaluation": "was not evaluated yet",
    "examples": "There are no examples to show",
}


@pytest.mark.parametrize("part", ABSENT)
def test_what_is_missing_has_a_sentence(full, tmp_path, part):
    assert ABSENT[part] not in plain(full)
    text = page(whole(tmp_path / "run", **{part: None}))
    assert ABSENT[part] in plain(text)
    assert len(re.findall("<section", text)) == 8
    assert text.index('<section id="gallery"') < text.index('<section id="quality"') < text.index('<section id="settings"')


def test_no_labels_no_accuracies_but_the_reason(tmp_path):
    evaluation = fixtures.evaluation(anomaly=None)
    evaluation["protocol"]["note"] = "the data has no labels"
    for r in evaluation["representations"].values():
        r |= {"knn": None, "probe": None}
    data = fixtures.examples(40)
    data["label"][:] = -1
    del data["anomalous"], data["neighbors"]
    text = page(whole(tmp_path / "run", evaluation=evaluation, examples=data))
    assert "There are no accuracies: the data has no labels." in plain(text)
    assert "No class was held out as an anomaly" in plain(text)
    assert "There are no nearest neighbors" in plain(text)
    assert len(drawing(text, "map")) == 1 and "</svg> no label</span>" in text


def test_the_folder_is_text_or_a_path_and_a_run_is_named(tmp_path):
    run = whole(tmp_path / "run")
    assert write_report(str(run)) == write_report(run) == run / "report.html"
    refuses(r"found a SimpleNamespace; give run\.folder\.path", write_report, SimpleNamespace(folder=run))
    refuses("found None", write_report, None)


def test_numbers_that_are_not_finite_are_left_out(tmp_path):
    metrics = [
        {"step": 1, "epoch": 1.0, "loss": 2.0},
        {"step": 2, "epoch": 2.0, "loss": float("nan")},
        {"epoch": 3.0, "loss": None},
    ]
    data = fixtures.examples(40)
    data["score"][7] = np.nan
    text = page(whole(tmp_path / "run", rows=metrics, examples=data))
    assert [[title for *_, title in marks] for marks in drawing(text, "curve0")] == [["Loss: 2 at 1"]]
    assert steps(text)["order"][39] == 7 and len(re.findall(r'data-item="\d+" style="--score', text)) == 39


@pytest.mark.parametrize("name", ["evaluation.json", "examples.npz"])
@pytest.mark.parametrize("keep", [0, 100])
def test_a_damaged_file_is_left_out_and_said(tmp_path, name, keep):
    run = whole(tmp_path / "run")
    (run / name).write_bytes((run / name).read_bytes()[:keep])
    assert f"{name} is damaged and left out" in plain(page(run))


def test_skipped_items_are_counted_and_listed(tmp_path):
    skipped = [(f"folder, a/{i}.jpg", "truncated") for i in range(150)]
    text = page(whole(tmp_path / "run", skipped=skipped))
    assert "150 items could not be read" in plain(text) and "The first 100 are shown" in plain(text)
    assert rows(text, "Skipped") == [list(row) for row in skipped[:100]]


def test_every_setting_is_listed(full):
    listed = dict(rows(full, "Settings"))
    for part in ("data", "views", "model", "fit", "metadata"):
        for key, value in fixtures.config()[part].items():
            assert json.loads(listed[f"{part}: {key}"]) == value


@pytest.mark.parametrize(
    ("content", "words"), [(None, "has no config.json"), ("{", "is damaged"), ('{"data": {}}', "is damaged")]
)
def test_no_description_no_report(tmp_path, content, words):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    refuses(re.escape(words), write_report, tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_the_page_appears_in_one_step(tmp_path, monkeypatch):
    run = whole(tmp_path / "run")
    before = write_report(run).read_bytes()
    (run / "metrics.jsonl").unlink()
    seen = []
    real = Path.replace

    def replace(self, target):
        seen.append((self.parent == run, (run / "report.html").read_bytes() == before, self.stat().st_size > 1e4))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    assert write_report(run) == run / "report.html"
    assert seen == [(True, True, True)] * 2  # items.html, then report.html
    found = ["config.json", "evaluation.json", "examples.npz", "items.html", "report.html"]
    assert sorted(p.name for p in run.iterdir()) == found


def test_a_report_needs_no_torch():
    code = "import sys, vergence.learn.runs.page; print([m for m in ('torch', 'PIL') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def browse(file, profile, *options):
    quiet = ["--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    command = [CHROMIUM, "--headless", "--no-sandbox", *quiet, f"--user-data-dir={profile}", *options]
    return subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=60, check=True)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome is installed")
def test_a_browser_draws_every_chart(tmp_path):
    file = write_report(whole(tmp_path / "run", examples=fixtures.examples(120)))
    found = browse(file, tmp_path / "profile", "--dump-dom", "--virtual-time-budget=8000", "--enable-logging=stderr")
    assert re.search(r'<html[^>]* data-drawn="11"', found.stdout)  # the scores, the map, and nine curves
    drawn = re.sub(r"<script.*?</script>", "", found.stdout, flags=re.S)
    chart = drawn.split('data-figure="map"')[1].split('id="neighbors"')[0]
    assert len(re.findall(r'<path class="mark"', chart)) == 120
    assert re.search(r'<circle class="ring"[^>]* transform="translate', chart)
    assert re.search(r'<img id="seen" alt="test/[^"]*held out as an anomaly" src="data:image/png', drawn)
    assert not re.search(r"CONSOLE.*(error|refused|violates)", found.stderr, re.I)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome is installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(tmp_path, scheme):
    play = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    file = write_report(whole(tmp_path / "run", examples=fixtures.examples(60)))
    with play.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page(color_scheme=scheme)
        opened.goto(file.as_uri())
        found = axe.Axe().run(opened)
    assert found.violations_count == 0, [(v["id"], v["nodes"][0]["html"][:200]) for v in found.response["violations"]]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome is installed")
def test_nothing_is_wider_than_the_page(tmp_path):
    config = fixtures.config(data={"source": "folder/" + "x" * 200})
    write_report(whole(tmp_path / "run", config=config, skipped=[("y" * 200, "z" * 200)]))
    frame = '<iframe src="run/report.html" style="width:{}px;height:900px;border:0"></iframe>'
    measure = "[...document.querySelectorAll('iframe')].map(frame => frame.contentDocument.documentElement)"
    widths = f"{measure}.map(page => `${{page.scrollWidth}} ${{page.clientWidth}}`).join()"
    script = f"<script>setTimeout(() => {{ document.title = {widths} }}, 4000)</script>"
    (tmp_path / "frames.html").write_text(f"<body>{frame.format(400)}{frame.format(1400)}{script}")
    options = ("--dump-dom", "--virtual-time-budget=9000", "--allow-file-access-from-files", "--window-size=1600,1000")
    found = browse(tmp_path / "frames.html", tmp_path / "profile", *options)
    for width, (scroll, client) in zip((400, 1400), re.findall(r"(\d+) (\d+)", found.stdout.split("title>")[1]), strict=True):
        assert int(scroll) <= int(client) <= width and int(client) >= width - 20


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome is installed")
def test_items_are_looked_at_one_by_one(tmp_path):
    play = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    data = fixtures.examples(60)
    file = write_report(whole(tmp_path / "run", examples=data))
    with play.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page()
        said = []
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        opened.goto(file.as_uri())
        opened.get_by_role("link", name="Look at the test items one by one").click()
        opened.wait_for_selector("html[data-ready]")
        first = opened.locator("#grid .tile .name").first.inner_text()
        opened.locator("#grid .tile").first.click()
        assert "larger is more anomalous" in opened.locator("#about").inner_text()
        assert axe.Axe().run(opened).violations_count == 0
    scores = np.where(np.isfinite(data["score"]), data["score"], -np.inf)
    assert first == str(data["name"][int(scores.argmax())]) and said == []
    write_report(whole(tmp_path / "none", examples={k: v for k, v in data.items() if k != "thumbnail"}))
    assert not (tmp_path / "none" / "items.html").exists()
