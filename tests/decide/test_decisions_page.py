"""The page of scores: what it says and shows, that it escapes and loads nothing, and that a browser draws the pictures."""

import dataclasses
import re
import shutil
import subprocess

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
    texts = {"name": [name.format(i) for i in range(n)], "level": ["z"] * n, "reason": ["z 1 in 500"] * n, "nearest": [""] * n}
    numbers = {"score": np.arange(n, 0.0, -1), "p_value": np.full(n, 0.001), "flag": np.arange(n) < 2}
    return dataclasses.replace(Decisions({**numbers, **texts}, n, 2, 99, 0.1), **changed)


def page(path, decisions, **more):
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 3, 12, 12), dtype=np.uint8))
    items = ArrayItems(x, names=decisions.names) if len(decisions.names) == 4 else ArrayItems(x)
    return write_decisions(path, decisions, items=items, name="mine", **more).read_text(encoding="utf-8")


def sections(text):
    return re.findall(r'<section id="(\w+)"', text)


def test_what_is_shown(tmp_path):
    text = page(tmp_path / "p.html", found())
    assert "<p>2 of 4 pictures flagged" in text and text.count("data:image/png;base64,") == 4
    assert text.count("class=flagged") == 2 and sections(text) == ["strangest", "meaning"]
    assert "<dt>Items</dt><dd>4</dd>" in text and "Unreadable" not in text and "<dt>Calibration items</dt><dd>99</dd>" in text
    assert "Nothing was scored" in page(tmp_path / "q.html", found(total=0, columns=found(0).columns))


def test_every_text_is_escaped_and_nothing_is_loaded(tmp_path):
    decisions = found(name=HOSTILE + "{}", why_none=HOSTILE, flagged=0)
    decisions.columns["reason"][:] = [HOSTILE] * 4
    text = page(tmp_path / "p.html", decisions)
    assert "<img src=x" not in text and text.count("&lt;img src=x onerror") >= 9
    assert not re.search(r"(src|href)=\"(?!#|data:)", text)
    assert len(text) < 40_000 and "default-src 'none'" in text


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome is installed")
def test_a_browser_shows_the_pictures_and_runs_no_foreign_markup(tmp_path):
    page(tmp_path / "p.html", found(why_none=HOSTILE, flagged=0))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    shown = subprocess.run([*command, (tmp_path / "p.html").as_uri()], capture_output=True, text=True, timeout=120)
    assert "<title>Unusual items: mine</title>" in shown.stdout and shown.stdout.count("<figure") == 4
    assert re.search(r'<html[^>]* data-drawn="0"', shown.stdout)
