"""The page of `check` in a real browser: filters, search, order, the large view, marks, the map and files."""

import contextlib
import csv
import dataclasses
import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from tests.factories import drawn

import vergence
from vergence.data.image_list import ImageList
from vergence.decide import q_values
from vergence.images.page import write_check
from vergence.images.review import Review
from vergence.utils.parts import original
from vergence.utils.terminal import Table

sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.float32, pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome is installed")]

HOSTILE = ["=1+1.png", "a b 'c' \"d\".png", "<img src=x onerror=alert(1)>.png", "\u202eright.png", "n" * 180 + ".png"]


def image(seed):
    return Image.fromarray(drawn(seed, 40, 12))


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """A folder of 130 images, five of them noise, two duplicates, hostile names and a broken file; and what was found."""
    root = tmp_path_factory.mktemp("workbench")
    photos = root / "photos"
    (photos / "inner").mkdir(parents=True)
    for i in range(118):
        image(i).save(photos / "inner" / f"p{i:03d}.png")
    for i, name in enumerate(HOSTILE):
        image(500 + i).save(photos / name.replace("/", "_"))
    for i in range(5):
        noise = np.random.default_rng(i).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(photos / f"noise{i}.png")
    image(0).save(photos / "copy.bmp")
    image(1).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(photos / "mirrored.png")
    (photos / "broken.jpg").write_text("no image")
    found = vergence.check(photos, out=root / "out", encoder="patches", workers=0)
    return photos, found, root / "out" / "report.html"


@pytest.fixture(scope="module")
def browser():
    with sync.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextlib.contextmanager
def opened_page(browser, path, **settings):
    """The page in a browser of its own, in which no error may happen and nothing may be loaded."""
    with browser.new_context(**{"viewport": {"width": 1300, "height": 900}} | settings) as context:
        opened = context.new_page()
        errors = []
        wrong = {"console": lambda e: e.type in ("error", "warning") and "ERR_FILE_NOT_FOUND" not in e.text, "pageerror": bool}
        wrong["request"] = lambda e: not e.url.startswith(("file:", "data:", "blob:"))
        for kind, is_wrong in wrong.items():
            opened.on(kind, lambda event, is_wrong=is_wrong: errors.append(str(event)) if is_wrong(event) else None)
        opened.goto(path.as_uri())
        opened.wait_for_selector("html[data-ready]")
        yield opened
        assert errors == []


@pytest.fixture
def page(checked, browser):
    with opened_page(browser, checked[2], accept_downloads=True) as opened:
        yield opened


def shown(page):
    return page.locator("#shown").inner_text()


def names(page):
    return page.locator("#grid .tile .name").all_inner_texts()


def test_filters_search_and_order(page, checked):
    assert {f"noise{i}.png" for i in range(5)} == set(names(page)[:5]) and shown(page).startswith("130 of 130")
    assert page.get_by_role("button", name="Flagged").count() == 0 and "Nothing is flagged without a reference" in (
        page.locator("header").inner_text()
    )
    page.locator("#search").fill("noise")
    assert shown(page).startswith("5 of 130")
    page.locator("#search").fill("nowhere")
    assert page.locator("#grid").inner_text() == "No name contains “nowhere”."
    page.locator("#search").fill("")
    page.evaluate("scrollTo(0, 1e5)")  # the next list is shown from its first again
    page.locator("#sort").select_option("name")
    assert names(page)[0] == min(checked[1].items["path"])
    page.get_by_role("button", name="Pairs of duplicates (2)").click()
    page.locator("#sort").select_option("score")
    assert sorted(names(page)) == ["copy.bmp", "inner/p000.png", "inner/p001.png", "mirrored.png"]
    assert {*names(page)[:2]} in ({"copy.bmp", "inner/p000.png"}, {"mirrored.png", "inner/p001.png"})
    assert shown(page) == "2 of 2 pairs shown"
    assert "broken.jpg" in page.locator("#unreadable").inner_text()


def test_how_many_to_check_and_to_print(page):
    pressed = page.locator("#filters button[aria-pressed=true]")
    assert pressed.inner_text() == "All (130)" and page.locator("#expected").inner_text() == "20"  # shown is what is pressed
    page.locator("#first").fill("25")
    assert shown(page).startswith("25 of 130") and pressed.inner_text() == "The first (25)"
    assert page.locator("#expected").inner_text() == "25"  # without a reference there is an order, and no number
    page.get_by_role("button", name="All (130)").click()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#grid .tile").count() == 120


def test_an_image_opens_large_with_its_reasons_duplicates_and_neighbors(page):
    page.get_by_role("button", name="Pairs of duplicates (2)").click()
    tile = page.locator("#grid .tile", has_text="copy.bmp")
    tile.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("#large")
    assert dialog.locator("h2").first.inner_text() == "copy.bmp"
    assert dialog.locator(".set").count() == 3 and "Share of the images here that are less anomalous" in dialog.inner_text()
    assert dialog.locator(".ends").inner_text().split("\n") == ["0 %", "50 %", "100 %"]
    for one in dialog.locator(".set").all():  # a full bar is 100 %
        share = one.evaluate("e => e.querySelector('.bar div').clientWidth / e.querySelector('.bar').clientWidth")
        assert 100 * share == pytest.approx(float(one.locator("b").inner_text()[:-2]), abs=1)
    assert dialog.get_by_role("button", name="inner/p000.png, exact").inner_text() == "exact"
    assert dialog.locator("#about .small").first.locator("button").count() == 5
    page.wait_for_function("document.querySelector('#canvas img').src.startsWith('file:')")  # the original file
    page.keyboard.press("ArrowRight")
    assert dialog.locator("h2").first.inner_text() != "copy.bmp"
    page.keyboard.press("Escape")
    assert not dialog.is_visible() and page.evaluate("document.activeElement.className").startswith("tile")


def test_marks_are_saved_and_read_again(page, checked, tmp_path):
    photos, _, _ = checked
    page.locator("#grid .tile", has_text="noise0.png").focus()
    page.keyboard.press("a")
    page.locator("#search").fill("=1+1")
    page.locator("#grid .tile").first.click()
    page.keyboard.press("n")
    page.keyboard.press("Escape")
    reviewed = "Marked: 1 anomaly, 1 normal. You marked 1 of the first 20 as anomaly."  # a count alone: no rate
    assert page.locator("#reviewed").inner_text() == reviewed
    with page.expect_download() as download:
        page.locator("#save-review").click()
    download.value.save_as(tmp_path / "confirmed.csv")
    review = Review.read(tmp_path / "confirmed.csv")
    assert (list(review.anomaly), list(review.normal)) == (["noise0.png"], ["=1+1.png"])
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert "1 anomaly, 1 normal" in page.locator("#reviewed").inner_text()  # the browser keeps them
    again = vergence.check(photos, confirmed=review, encoder="patches", workers=0)
    assert again.marks == {"noise0.png": "anomaly", "=1+1.png": "normal"}
    assert not {"noise0.png", "=1+1.png"} & {again.items["path"][i] for i in again.most_anomalous(20)}


def test_lists_are_saved(page, tmp_path, checked):
    page.get_by_role("button", name="All (130)").click()
    with page.expect_download() as download:
        page.locator("#save-list").click()
    download.value.save_as(tmp_path / "list.txt")
    lines = (tmp_path / "list.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(lines) == sorted(checked[1].items["path"])
    with (checked[2].parent / "items.csv").open(newline="", encoding="utf-8") as file:
        assert sorted(original(row["path"]) for row in csv.DictReader(file)) == sorted(lines)


def test_the_map_shows_images_and_selects_what_a_line_encloses(page):
    box = page.locator("#map").bounding_box()
    corners = [(2, 2), (box["width"] - 2, 2), (box["width"] - 2, box["height"] / 2), (2, box["height"] / 2), (2, 2)]
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.down()
    for x, y in corners:
        page.mouse.move(box["x"] + x, box["y"] + y, steps=4)
    page.mouse.up()
    assert "inside your line" in shown(page)
    few, many = (page.evaluate(f"D.y.filter(y => y > {edge}).length") for edge in (0.52, 0.48))  # a pixel's rounding at the edge
    assert few <= int(shown(page).split()[0]) <= many
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#map").bounding_box()  # the page may have moved: the line changed what stands above the map
    x, y = page.evaluate("spot([...state.lasso][0])")  # wherever this processor's map has it
    scale = box["width"] / page.evaluate("map.width")
    page.mouse.move(box["x"] + x * scale, box["y"] + y * scale)
    assert page.locator("#hover").is_visible() and page.locator("#hover").inner_text()
    page.locator("#color").select_option("light")
    assert page.locator("#regions button").count() >= 20


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page, scheme):
    page.emulate_media(color_scheme=scheme)
    scan = axe.Axe()
    found = scan.run(page)
    assert found.violations_count == 0, json.dumps(found.response["violations"], indent=1)[:2000]
    page.locator("#grid .tile").first.click()
    found = scan.run(page)
    assert found.violations_count == 0, json.dumps(found.response["violations"], indent=1)[:2000]


def test_on_a_phone_nothing_is_wider_than_the_screen_or_too_small_to_touch(page):
    page.set_viewport_size({"width": 390, "height": 844})
    box = "[...document.querySelectorAll('button, select, input')].map(e => e.getBoundingClientRect())"
    small = f"{box}.filter(b => b.width && Math.min(b.width, b.height) < 44).length"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390 and page.evaluate(small) == 0
    page.locator("#grid .tile").first.click()
    assert page.evaluate("document.querySelector('#large').scrollWidth") <= 390 and page.evaluate(small) == 0


@pytest.mark.parametrize("n", [1, 2])
def test_hardly_any_images(browser, tmp_path, n):
    found = vergence.check([np.asarray(image(i)) for i in range(n)], out=tmp_path / "out", workers=0)
    with opened_page(browser, tmp_path / "out" / "report.html") as opened:
        assert opened.locator("#grid .tile").count() == n == len(found.items) and not opened.locator("#budget").is_visible()


def test_a_page_that_was_moved_says_so(checked, browser, tmp_path):
    shutil.copy(checked[2], tmp_path / "moved.html")
    with opened_page(browser, tmp_path / "moved.html") as opened:
        opened.locator("#grid .tile").first.click()
        opened.wait_for_function("document.querySelector('#large-note').textContent.includes('was moved')")
        assert opened.evaluate("document.querySelector('#canvas img').naturalWidth") > 0


def test_next_to_a_reference_its_anomalies_are_taken_out_and_regions_are_shown(browser, tmp_path):
    reference = [np.asarray(image(1000 + i)) for i in range(60)]
    reference[7] = np.random.default_rng(7).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    new = [*(np.array(image(i)) for i in range(10)), np.random.default_rng(1).integers(0, 256, (40, 40, 3), dtype=np.uint8)]
    new[0][10:18, 20:28] = np.random.default_rng(0).integers(0, 256, (8, 8, 3))
    found = vergence.check(new, against=reference, encoder="patches", region_rate=0.2, out=tmp_path / "out", workers=0)
    with opened_page(browser, tmp_path / "out" / "report.html") as opened:
        assert "Feature sets and their weights: whole" in opened.locator("header").inner_text()
        p = np.array(found.items["p_value"])
        last = int(np.argsort(-np.array(found.items["score"]), kind="stable")[2])
        opened.locator("#first").fill("3")
        words = f"3: of 11 normal images about {11 * p[last]:.{2 if 11 * p[last] < 1 else 1}f} would be as far from the reference"
        assert opened.locator("#expected").inner_text() == words
        opened.locator("#filters button", has_text="All").click()
        opened.locator("#search").fill("0")
        opened.locator("#grid .tile").first.click()
        framed = [i for i in range(len(new)) if found.frames(i)]  # whether they are flagged or not
        assert opened.evaluate("Object.keys(D.frames).map(Number)") == framed and not found.items["flag"][0] and 0 in framed
        assert opened.get_by_role("button", name=f"With frames ({len(framed)})").is_visible()
        assert opened.locator("#canvas .heat").count() == 1 and opened.locator("#canvas .frame").count() == len(found.frames(0))
        assert "of the reference that is less anomalous" in opened.locator("#about").inner_text()
        opened.keyboard.press("m")
        assert opened.locator("#canvas .heat, #canvas .frame").count() == 0
        opened.keyboard.press("Escape")
        opened.locator("#search").fill("")
        opened.locator("#filters button", has_text="Most anomalous reference").click()
        assert names(opened)[0] == "7" == found.summary["reference_anomalies"][0]
        opened.locator("#grid .tile").nth(1).focus()  # of rank 2
        opened.keyboard.press("a")
        after = np.array(opened.evaluate("p.slice()"))
        opened.evaluate("say(0, 'anomaly')")
        drawn = opened.evaluate("[q, flag]")
    c = np.rint(61 * p) - 1
    np.testing.assert_allclose(after, (1 + c - (c >= 2)) / 60, rtol=1e-4)
    q = np.r_[1.0, q_values(np.r_[0.0, after[1:]])[1:]]  # a marked anomaly is a discovery with p = 0
    np.testing.assert_allclose(drawn[0], q, rtol=1e-4)
    assert drawn[1] == [int(one <= 0.1) for one in q]


def test_the_page_of_leaks_opens_on_the_pairs_without_a_map_or_marks(browser, tmp_path):
    reference, new = [np.asarray(image(i)) for i in range(6)], [np.asarray(image(i)) for i in (9, 4, 8, 2)]
    vergence.check(new, against=reference, leaks=True, out=tmp_path / "out", workers=0)
    with opened_page(browser, tmp_path / "out" / "report.html") as opened:
        assert shown(opened) == "2 of 2 pairs shown" and sorted(names(opened)) == ["1", "2", "3", "4"]
        assert opened.locator("#filters [aria-pressed=true]").inner_text() == "Leaked (2)"
        opened.locator("#grid .tile").first.click()
        assert not opened.locator("aside, #save-review, #mark-keys, [data-say]").filter(visible=True).count()


def test_a_page_of_many_images_shows_what_stands_out_and_a_sample(checked, browser, tmp_path, monkeypatch):
    _, found, _ = checked
    monkeypatch.setattr("vergence.images.page.MOST", 60)
    page = found.report(tmp_path / "many.html")
    with opened_page(browser, page) as opened:
        n, names = opened.evaluate("[N, D.name]")
        assert n == 60 and "60 of 130 are on this page" in opened.locator("header").inner_text()
    first = {found.items["path"][i] for i in found.most_anomalous(5)}
    assert first <= {*names} and {"copy.bmp", "mirrored.png"} <= {*names}


def test_images_that_were_deleted_are_empty_tiles_and_no_error(tmp_path, browser):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(30):
        image(i).save(folder / f"{i}.png")
    found = vergence.check(folder, encoder="patches", workers=0)
    shutil.rmtree(folder)
    with opened_page(browser, found.report(tmp_path / "gone.html")) as opened:
        assert opened.evaluate("N") == 30 and opened.locator("#grid .tile").count() > 0


def test_vectors_alone_have_a_page_without_images(browser, tmp_path):
    x = np.random.default_rng(0).normal(size=(80, 6))
    x[3] += 30
    vergence.check(x, out=tmp_path / "out")
    with opened_page(browser, tmp_path / "out" / "report.html") as opened:
        assert opened.locator("#grid .tile .name").first.inner_text() == "3"
        opened.locator("#grid .tile").first.click()
        about = opened.locator("#about").inner_text()
        assert "Share of the vectors here" in about and "q = " not in about


def test_pairs_stand_side_by_side_and_say_which_to_keep(checked, browser, tmp_path):
    pairs = checked[1].duplicates.columns
    found = dataclasses.replace(checked[1], duplicates=Table({**pairs, "keep": [pairs["duplicate_of"][0], ""]}))
    with opened_page(browser, found.report(tmp_path / "pairs.html")) as opened:
        opened.get_by_role("button", name="Pairs of duplicates (2)").click()
        first, second = (tile.bounding_box() for tile in opened.locator("#grid .tile").all()[:2])
        assert first["y"] == second["y"] and 0 < second["x"] - first["x"] - first["width"] < 20
        kinds = opened.locator(".pair").all_inner_texts()
        assert kinds[0] == "exact" and re.fullmatch(r"mirrored, agreement (0\.9\d\d|1\.000) of 1", kinds[1])
        size = "40 x 40 pixels"
        assert opened.locator("#grid .why").all_inner_texts() == [size, f"{size}, keep this one", size, size]


def test_a_reason_is_whole_in_the_title(page, checked):
    tile, items = page.locator("#grid .tile").first, checked[1].items
    name = tile.locator(".name").inner_text()
    reason = items["reason"][items["path"].index(name)]
    assert len(reason) > 25 and tile.get_attribute("title") == f"{name}: {reason}" and tile.locator(".why").inner_text() == reason
    assert page.evaluate("(e => e.scrollHeight <= e.clientHeight)(document.querySelector('.tile .why'))")


def test_the_last_mark_survives_the_end_of_the_browser_and_a_page_that_is_written_again(checked, browser, tmp_path):
    for file in (checked[2], checked[1].report(tmp_path / "again.html")):
        kept = {"user_data_dir": tmp_path / "profile", "executable_path": CHROMIUM, "args": ["--no-sandbox"]}
        with browser.browser_type.launch_persistent_context(**kept) as context:
            context.pages[0].goto(file.as_uri())
            marks = context.pages[0].locator("#reviewed").inner_text()
            context.pages[0].locator("#grid .tile").first.press("a")
    assert marks.startswith("Marked: 1 anomaly, 0 normal.")


def test_earlier_marks_are_on_the_page_and_can_be_undone(checked, browser, tmp_path):
    found = dataclasses.replace(checked[1], marks={"noise0.png": "anomaly", "=1+1.png": "normal", "gone.png": "anomaly"})
    with opened_page(browser, found.report(tmp_path / "marks.html")) as opened:
        assert opened.locator("#reviewed").inner_text().startswith("Marked: 1 anomaly, 1 normal.")
        opened.locator("#grid .tile", has_text="noise0.png").press("u")
        opened.reload()
        assert opened.locator("#reviewed").inner_text().startswith("Marked: 0 anomaly, 1 normal.")


def test_no_hue_is_named_of_gray_images(tmp_path):
    images = [image(i) if i < 40 else image(i).convert("L").convert("RGB").point(lambda v: v // 3) for i in range(44)]
    found = vergence.check([np.asarray(image) for image in images], out=tmp_path / "out", encoder="patches", workers=0)
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    page = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    of_gray = [*found.items["reason"][40:], *(page["words"][m][0] for facts in page["facts"][40:] for m, *_ in facts)]
    assert any("darker" in words for words in of_gray) and not re.search(r"\b(red|green|blue)\b", " ".join(of_gray))


def many(found, n=20_000):
    """What was found among few images, again and again, with long names and many pairs."""
    r, at = np.random.default_rng(0), np.arange(n) % len(found.items)
    p, names = r.random(n), [f"{'folder/' * 6}{i:06d}_image.png" for i in range(n)]
    columns = {key: [values[i] for i in at] for key, values in found.items.columns.items()}
    columns |= {"path": names, "score": -np.log(p), "p_value": p, "q_value": p, "flag": (p < 0.002).astype(np.uint8)}
    pairs = {"path": names[:2000], "duplicate_of": names[2000:4000], "source": ["same"] * 2000, "kind": ["near"] * 2000}
    features = {"measurements": found.features.measurements[at], "digest": found.features.digest[at], "index": np.arange(n)}
    return SimpleNamespace(
        items=Table(columns | {"projection_x": p, "projection_y": r.random(n)}),
        duplicates=Table({**pairs, "agreement": [0.98] * 2000}),
        summary=found.summary | {"rate": "twins: an assumption"},
        embeddings=r.normal(size=(n, 32)).astype(np.float32),
        images=ImageList(names, [found.pixels(i) for i in range(len(found.items))] * (n // len(found.items) + 1)),
        features=SimpleNamespace(**features),
        feature_sets=lambda: {name: values[at] for name, values in found.feature_sets().items()},
        frames=lambda i: found.frames(at[i]),
        map=lambda i: found.map(at[i]),
        **{"skipped": found.skipped, "reference": None, "workers": 0, "key": "many", "marks": {}, "nearest": tuple},
        calibration=lambda: None,
    )


ACTS = {  # on the k-th of three tries
    "filter": "buttons.get(['flag', 'pair', 'all'][k]).click()",
    "search": "put('search', ['1', '12', ''][k], 'input')",
    "sort": "put('sort', ['light', 'name', 'score'][k], 'change')",
    "slider": "put('first', 500 + k, 'input')",
    "scroll": "scrollBy(0, 3000)",
    "mark": "say(view[k], ['anomaly', 'normal', 'anomaly'][k])",
    "open": "open(view[k + 20])",
    "next": "step(1)",
}
TIMED = """async () => {{
  const put = (id, value, kind) => {{ $(id).value = value; $(id).dispatchEvent(new Event(kind)); }}, times = [];
  for (let k = 0; k < 3; k++) {{
    const began = performance.now();
    {};
    await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
    times.push(performance.now() - began);
  }}
  return times.sort((a, b) => a - b)[1];
}}"""


@pytest.mark.slow
def test_a_page_of_20_000_images_stays_small_and_quick(checked, browser, tmp_path):
    page = write_check(tmp_path / "many.html", many(checked[1]))
    assert page.stat().st_size <= 15e6
    with opened_page(browser, page) as opened:
        assert opened.locator("#grid .tile").first.bounding_box()["width"] >= 128  # wide enough for a reason
        times = {name: opened.evaluate(TIMED.format(act)) for name, act in ACTS.items()}
    assert max(times.values()) < 300, times
