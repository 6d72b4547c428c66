"""The page of `check` in a real browser: filters, search, order, the large view, marks, the map, confirmations and files."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image, ImageDraw

import vergence
from vergence.decide import q_values
from vergence.images.review import Review
from vergence.utils.parts import original

sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.float32, pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome is installed")]

HOSTILE = ["=1+1.png", "a b 'c' \"d\".png", "<img src=x onerror=alert(1)>.png", "\u202eright.png", "n" * 180 + ".png"]


def picture(seed, size=40):
    r = np.random.default_rng(seed)
    image = Image.fromarray(r.integers(60, 195, (4, 4, 3), dtype=np.uint8)).resize((size, size), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        x, y, s = *r.integers(0, size, 2), size / 2 ** r.uniform(1.5, 5)
        draw.ellipse([x, y, x + s, y + s], fill=tuple(r.integers(20, 235, 3).tolist()))
    return Image.fromarray(np.clip(np.asarray(image) + r.normal(0, 3, (size, size, 3)), 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """A folder of 130 pictures, five of them noise, two copies, hostile names and a broken file; and what was found."""
    root = tmp_path_factory.mktemp("workbench")
    photos = root / "photos"
    (photos / "inner").mkdir(parents=True)
    for i in range(118):
        picture(i).save(photos / "inner" / f"p{i:03d}.png")
    for i, name in enumerate(HOSTILE):
        picture(500 + i).save(photos / name.replace("/", "_"))
    for i in range(5):
        noise = np.random.default_rng(i).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(photos / f"noise{i}.png")
    picture(0).save(photos / "copy.bmp")
    picture(1).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(photos / "mirrored.png")
    (photos / "broken.jpg").write_text("no picture")
    found = vergence.check(photos, out=root / "out", encoder="patches", workers=0)
    return photos, found, root / "out" / "report.html"


@pytest.fixture(scope="module")
def browser():
    with sync.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(checked, browser):
    with browser.new_context(viewport={"width": 1300, "height": 900}, accept_downloads=True) as context:
        opened = context.new_page()
        said = []
        opened.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.on(
            "request",
            lambda request: said.append(request.url) if not request.url.startswith(("file:", "data:", "blob:")) else None,
        )
        opened.goto(checked[2].as_uri())
        opened.wait_for_selector("html[data-ready]")
        yield opened
        assert said == []


def shown(page):
    return page.locator("#shown").inner_text()


def names(page):
    return page.locator("#grid .tile .name").all_inner_texts()


def test_filters_search_and_order(page, checked):
    _, found, _ = checked
    assert {f"noise{i}.png" for i in range(5)} == set(names(page)[:5]) and shown(page).startswith("130 of 130")
    assert page.get_by_role("button", name="Flagged").count() == 0 and "Without a reference none is flagged" in (
        page.locator("header").inner_text()
    )
    page.locator("#search").fill("noise")
    assert shown(page).startswith("5 of 130")
    page.locator("#search").fill("")
    page.locator("#sort").select_option("name")
    assert names(page)[0] == min(found.items["path"])
    page.get_by_role("button", name="Duplicates (4)").click()
    page.locator("#sort").select_option("score")
    assert sorted(names(page)) == ["copy.bmp", "inner/p000.png", "inner/p001.png", "mirrored.png"]
    assert {*names(page)[:2]} in ({"copy.bmp", "inner/p000.png"}, {"mirrored.png", "inner/p001.png"})
    assert "broken.jpg" in page.locator("#unreadable").inner_text()


def test_how_many_to_look_at(page):
    page.locator("#first").fill("20")
    assert shown(page).startswith("20 of 130")
    assert page.locator("#expected").inner_text() == "20"  # without a reference there is an order, and no number


def test_a_picture_opens_large_with_its_reasons_copies_and_neighbors(page):
    page.get_by_role("button", name="Duplicates (4)").click()
    tile = page.locator("#grid .tile", has_text="copy.bmp")
    tile.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("#large")
    assert dialog.locator("h2").first.inner_text() == "copy.bmp"
    assert dialog.locator(".level").count() == 3 and "more anomalous than" in dialog.inner_text()
    assert dialog.get_by_role("button", name="inner/p000.png, exact").count() == 1
    assert dialog.locator("#about .small").first.locator("button").count() == 5
    page.wait_for_function("document.querySelector('#canvas img').src.startsWith('file:')")  # the original file
    page.keyboard.press("ArrowRight")
    assert dialog.locator("h2").first.inner_text() != "copy.bmp"
    page.keyboard.press("Escape")
    assert not dialog.is_visible() and page.evaluate("document.activeElement.className").startswith("tile")


def test_confirmations_are_saved_and_read_again(page, checked, tmp_path):
    photos, _, _ = checked
    page.locator("#grid .tile", has_text="noise0.png").focus()
    page.keyboard.press("a")
    page.locator("#search").fill("=1+1")
    page.locator("#grid .tile").first.click()
    page.keyboard.press("n")
    page.keyboard.press("Escape")
    assert page.locator("#reviewed").inner_text() == "You said: 1 anomaly, 1 normal."
    with page.expect_download() as download:
        page.locator("#save-review").click()
    download.value.save_as(tmp_path / "confirmed.csv")
    review = Review.read(tmp_path / "confirmed.csv")
    assert (list(review.anomaly), list(review.normal)) == (["noise0.png"], ["=1+1.png"])
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert "1 anomaly, 1 normal" in page.locator("#reviewed").inner_text()  # the browser keeps them
    again = vergence.check(photos, confirmed=review, encoder="patches", workers=0)
    assert not {"noise0.png", "=1+1.png"} & {again.items["path"][i] for i in again.strangest(20)}


def test_lists_are_saved(page, tmp_path, checked):
    page.get_by_role("button", name="All (130)").click()
    with page.expect_download() as download:
        page.locator("#save-list").click()
    download.value.save_as(tmp_path / "list.txt")
    lines = (tmp_path / "list.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(lines) == sorted(checked[1].items["path"])
    with (checked[2].parent / "items.csv").open(newline="", encoding="utf-8") as file:
        assert sorted(original(row["path"]) for row in csv.DictReader(file)) == sorted(lines)


def test_the_map_shows_pictures_and_selects_what_a_line_encloses(page):
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


def test_a_phone_has_no_sideways_scroll(page):
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#grid .tile").first.click()
    assert page.evaluate("document.querySelector('#large').scrollWidth") <= 390


def test_print_shows_the_pictures(page):
    page.get_by_role("button", name="All (130)").click()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#grid .tile").count() == 120


@pytest.mark.parametrize("n", [1, 2])
def test_hardly_any_pictures(browser, tmp_path, n):
    found = vergence.check([np.asarray(picture(i)) for i in range(n)], out=tmp_path / "out", workers=0)
    with browser.new_context() as context:
        opened = context.new_page()
        opened.goto((tmp_path / "out" / "report.html").as_uri())
        opened.wait_for_selector("html[data-ready]")
        assert opened.locator("#grid .tile").count() == n == len(found.items) and not opened.locator("#budget").is_visible()


def test_a_page_that_was_moved_says_so(checked, browser, tmp_path):
    shutil.copy(checked[2], tmp_path / "moved.html")
    with browser.new_context() as context:
        opened = context.new_page()
        opened.goto((tmp_path / "moved.html").as_uri())
        opened.wait_for_selector("html[data-ready]")
        opened.locator("#grid .tile").first.click()
        opened.wait_for_function("document.querySelector('#large-note').textContent.includes('not where it was')")
        assert opened.evaluate("document.querySelector('#canvas img').naturalWidth") > 0


def test_next_to_a_reference_its_anomalies_are_taken_out_and_regions_are_shown(browser, tmp_path):
    reference = [np.asarray(picture(1000 + i)) for i in range(60)]
    reference[7] = np.random.default_rng(7).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    new = [*(np.array(picture(i)) for i in range(10)), np.random.default_rng(1).integers(0, 256, (40, 40, 3), dtype=np.uint8)]
    new[0][10:18, 20:28] = np.random.default_rng(0).integers(0, 256, (8, 8, 3))
    found = vergence.check(new, against=reference, encoder="patches", mark=0.2, out=tmp_path / "out", workers=0)
    with browser.new_context() as context:
        opened = context.new_page()
        opened.goto((tmp_path / "out" / "report.html").as_uri())
        opened.wait_for_selector("html[data-ready]")
        assert "Feature sets and their weights: whole" in opened.locator("header").inner_text()
        p = np.array(found.items["p_value"])
        last = int(np.argsort(-np.array(found.items["score"]), kind="stable")[2])
        opened.locator("#first").fill("3")
        said = f"3: of 11 normal images about {11 * p[last]:.{2 if 11 * p[last] < 1 else 1}f} would be as far from the reference"
        assert opened.locator("#expected").inner_text() == said
        opened.locator("#filters button", has_text="All").click()
        opened.locator("#search").fill("0")
        opened.locator("#grid .tile").first.click()
        assert opened.locator("#canvas .heat").count() == 1 and opened.locator("#canvas .frame").count() == len(found.marked(0))
        assert "less like the reference than" in opened.locator("#about").inner_text()
        opened.keyboard.press("m")
        assert opened.locator("#canvas .heat, #canvas .frame").count() == 0
        opened.keyboard.press("Escape")
        opened.locator("#filters button", has_text="Most anomalous reference").click()
        names = opened.locator("#grid .tile .name").all_inner_texts()
        assert names[0] == "7" == found.summary["reference_anomalies"][0]
        opened.locator("#grid .tile").nth(1).focus()  # of rank 2
        opened.keyboard.press("a")
        after = np.array(opened.evaluate("p.slice()"))
        opened.evaluate("say(0, 'anomaly')")
        drawn = opened.evaluate("[q, flag]")
    c = np.rint(61 * p) - 1
    np.testing.assert_allclose(after, (1 + c - (c >= 2)) / 60, rtol=1e-4)
    q = np.r_[1.0, q_values(after[1:])]
    np.testing.assert_allclose(drawn[0], q, rtol=1e-4)
    assert drawn[1] == [int(one <= 0.1) for one in q]


def test_a_page_of_many_pictures_shows_what_stands_out_and_a_sample(checked, browser, tmp_path, monkeypatch):
    _, found, _ = checked
    monkeypatch.setattr("vergence.images.page.MOST", 60)
    page = found.report(tmp_path / "many.html")
    with browser.new_context() as context:
        opened = context.new_page()
        opened.goto(page.as_uri())
        opened.wait_for_selector("html[data-ready]")
        n, names = opened.evaluate("[N, D.name]")
        assert n == 60 and "60 of 130 are on this page" in opened.locator("header").inner_text()
    first = {found.items["path"][i] for i in found.strangest(5)}
    assert first <= {*names} and {"copy.bmp", "mirrored.png"} <= {*names}


def test_pictures_that_were_deleted_are_empty_tiles_and_no_error(tmp_path, browser):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(30):
        picture(i).save(folder / f"{i}.png")
    found = vergence.check(folder, encoder="patches", workers=0)
    shutil.rmtree(folder)
    with browser.new_context() as context:
        opened = context.new_page()
        opened.goto(found.report(tmp_path / "gone.html").as_uri())
        opened.wait_for_selector("html[data-ready]")
        assert opened.evaluate("N") == 30 and opened.locator("#grid .tile").count() > 0


def test_vectors_alone_have_a_page_without_pictures(browser, tmp_path):
    x = np.random.default_rng(0).normal(size=(80, 6))
    x[3] += 30
    vergence.check(x, out=tmp_path / "out")
    with browser.new_context() as context:
        opened = context.new_page()
        said = []
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.goto((tmp_path / "out" / "report.html").as_uri())
        opened.wait_for_selector("html[data-ready]")
        assert opened.locator("#grid .tile .name").first.inner_text() == "3"
        opened.locator("#grid .tile").first.click()
        about = opened.locator("#about").inner_text()
        assert "more anomalous than" in about and "q = " not in about and said == []
