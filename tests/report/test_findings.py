"""The page of scores: what it says and shows, that it escapes and loads nothing, and that a browser draws the pictures."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from vergence.report.charts import thumbnail
from vergence.report.findings import Group, Shown, write_findings

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = '<img src=x onerror="document.title=1">'


def page(path, **more):
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 12, 12), dtype=np.uint8)
    shown = [Shown(f"{i}.png", thumbnail(images, i, 128), ("score 9, p = 0.001", "z 1 in 500"), i < 2) for i in range(4)]
    settings = {"name": "mine", "lead": ["look at 2 pictures"], "meaning": ["a model"], "facts": {"Items": "4", "Unreadable": ""}}
    settings |= {"oddities": shown, "groups": [Group("3 items like 1.png", shown[1:])], "copies": [], **more}
    return write_findings(path, **settings).read_text(encoding="utf-8")


def test_what_is_shown(tmp_path):
    text = page(tmp_path / "p.html")
    assert "<p>Look at 2 pictures</p>" in text and text.count("data:image/png;base64,") == 7
    assert text.count("class=flagged") == 3 and "3 items like 1.png" in text and "No item is a copy" in text
    assert "<dt>Items</dt><dd>4</dd>" in text and "Unreadable" not in text
    assert [*re.findall(r'<section id="(\w+)"', text)] == ["oddities", "groups", "copies", "meaning"]
    without = page(tmp_path / "q.html", groups=None, copies=None, oddities=[])
    assert [*re.findall(r'<section id="(\w+)"', without)] == ["oddities", "meaning"] and "Nothing was scored" in without


def test_every_text_is_escaped_and_nothing_is_loaded(tmp_path):
    bad = Shown(HOSTILE, "", (HOSTILE,), True)
    texts = {"name": HOSTILE, "lead": [HOSTILE], "meaning": [HOSTILE], "facts": {HOSTILE: HOSTILE}}
    text = page(tmp_path / "p.html", oddities=[bad], groups=[Group(HOSTILE, [bad])], copies=[Group(HOSTILE, [bad])], **texts)
    assert "<img src=x" not in text and text.count("&lt;img src=x onerror") >= 10
    assert not re.search(r"(src|href)=\"(?!#|data:)", text) and "plotly" not in text.lower().split("<script>")[0]
    assert len(text) < 40_000 and "default-src 'none'" in text


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome is installed")
def test_a_browser_shows_the_pictures_and_runs_no_foreign_markup(tmp_path):
    page(tmp_path / "p.html", lead=[HOSTILE])
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    found = subprocess.run([*command, (tmp_path / "p.html").as_uri()], capture_output=True, text=True, timeout=120)
    assert "<title>Unusual items: mine</title>" in found.stdout and found.stdout.count("<figure") == 7
    assert re.search(r'<html[^>]* data-drawn="0"', found.stdout)
