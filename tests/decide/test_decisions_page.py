"""The page of scores: what it says and shows, that it escapes and loads nothing, and that a browser filters, sorts and opens."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import torch

from vergence.data.items import ArrayItems
from vergence.decide.decisions import Decisions
from vergence.decide.page import write_decisions

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = '<img src=x onerror="document.title=1">'


def found(n=4, name="{}.png", **changed):
    """Decisions on n images, of which two are flagged."""
    texts = {"name": [name.format(i) for i in range(n)], "feature_set": ["z"] * n, "nearest": [""] * n}
    texts["reason"] = ["z 1 in 500"] * n
    p = np.full(n, 0.001)
    numbers = {"score": np.arange(n, 0.0, -1), "p_value": p, "q_value": p, "flag": np.arange(n) < 2}
    return dataclasses.replace(Decisions({**numbers, **texts}, n, 2, 99, 0.1), **changed)


def page(path, decisions, **more):
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 3, 12, 12), dtype=np.uint8))
    items = ArrayItems(x, names=decisions.names) if len(decisions.names) == 4 else ArrayItems(x)
    return write_decisions(path, decisions, items=items, name="mine", **more).read_text(encoding="utf-8")


def data_of(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


def test_what_is_shown(tmp_path):
    text = page(tmp_path / "p.html", found())
    data = data_of(text)
    assert "<p>2 of 4 images flagged.</p>" in text and len(data["sheets"]) == 1 and data["flag"] == [1, 1, 0, 0]
    assert "4 images, 99 calibration items, false-discovery rate 10 %" in text and "could not be read" not in text
    assert data["reason"] == ["z 1 in 500"] * 4 and data["start"] == "flag"
    text = page(tmp_path / "q.html", found(total=0, columns=found(0).columns))
    assert "0 images: nothing to decide" in text and data_of(text)["sheets"] == []


def test_every_text_is_escaped_and_nothing_is_loaded(tmp_path):
    decisions = found(name=HOSTILE + "{}", why_none=HOSTILE, flagged=0)
    decisions.columns["reason"][:] = [HOSTILE] * 4
    text = page(tmp_path / "p.html", decisions)
    assert "<img src=x" not in text and text.count("&lt;img src=x onerror") == 1 and text.count("\\u003cimg src=x onerror") == 8
    assert not re.search(r"(src|href)=\"(?!#|data:)", text) and "default-src 'none'" in text


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome is installed")
@pytest.mark.parametrize("kind", ["images", "rows"])
def test_a_browser_filters_sorts_and_opens_and_runs_no_foreign_markup(tmp_path, kind):
    play = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    decisions = found(name=HOSTILE + "{}")
    if kind == "images":
        page(tmp_path / "p.html", decisions)
    else:
        write_decisions(tmp_path / "p.html", decisions, name="mine", calibration=np.arange(99.0))
    with play.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page()
        opened.goto((tmp_path / "p.html").as_uri())
        opened.wait_for_selector("html[data-ready]")
        names = opened.locator("#grid .tile .name")
        assert names.all_inner_texts() == [HOSTILE + "0", HOSTILE + "1"] and opened.title() == "What is anomalous in mine"
        opened.get_by_role("button", name="All (4)").click()
        opened.locator("#sort").select_option("name")
        opened.locator("#search").fill("3")
        assert names.all_inner_texts() == [HOSTILE + "3"]
        opened.locator("#grid .tile").first.click()
        about = opened.locator("#about").inner_text()
        assert "Z 1 in 500." in about and "Score 1, p = 0.001, q = 0.001." in about
        opened.keyboard.press("a")  # what is said changes no flag
        assert opened.locator("#reviewed").inner_text() == "Marked: 1 anomaly, 0 normal. 2 flagged."
        images = opened.locator("#canvas .image").count(), opened.locator("#grid .image").count()
        assert images == ((1, 1) if kind == "images" else (0, 0)) and opened.locator(".figure").count() == 2 * (kind == "rows")
        assert axe.Axe().run(opened).violations_count == 0
