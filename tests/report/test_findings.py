"""The page of scores: what it says and shows, that it escapes and loads nothing, and that a browser draws the pictures."""

import dataclasses
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch

from vergence.data.items import ArrayItems
from vergence.detection.findings import Findings
from vergence.detection.groups import Group
from vergence.report.findings import write_findings

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = '<img src=x onerror="document.title=1">'


def found(n=4, name="{}.png", **changed):
    """Findings of n images that were judged by themselves: two are flagged, three are a group."""
    texts = {"name": [name.format(i) for i in range(n)], "level": ["z"] * n, "reason": ["z 1 in 500"] * n, "nearest": [""] * n}
    texts |= {column: [""] * n for column in ("measured", "group", "same_as", "similar_to")}
    numbers = {"score": np.arange(n, 0.0, -1), "p_value": np.full(n, 0.001), "flag": np.arange(n) < 2}
    groups = [Group(np.array([1, 2, 3]), separation=9.0, p_value=1e-3, distance=5.0)]
    return dataclasses.replace(Findings({**numbers, **texts}, n, 2, groups=groups), **changed)


def page(path, findings, **more):
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 3, 12, 12), dtype=np.uint8))
    items = ArrayItems(x, names=findings.names) if len(findings.names) == 4 else ArrayItems(x)
    return write_findings(path, findings, items, name="mine", **more).read_text(encoding="utf-8")


def sections(text):
    return re.findall(r'<section id="(\w+)"', text)


def test_what_is_shown(tmp_path):
    text = page(tmp_path / "p.html", found())
    assert "<p>Look at 2 pictures" in text and text.count("data:image/png;base64,") == 7
    assert text.count("class=flagged") == 2 and "3 items like 1.png" in text and "No item is a copy" in text
    assert "<dt>Items</dt><dd>4</dd>" in text and "Unreadable" not in text and "Odd groups" in text
    assert sections(text) == ["oddities", "groups", "copies", "meaning"]
    calibrated = page(tmp_path / "q.html", found(calibration=99, groups=(), total=0, columns=found(0).columns))
    assert sections(calibrated) == ["oddities", "meaning"] and "Nothing was scored" in calibrated


def test_every_text_is_escaped_and_nothing_is_loaded(tmp_path):
    findings = found(name=HOSTILE + "{}", changed=HOSTILE)
    findings.columns["reason"][:] = findings.columns["group"][:] = [HOSTILE] * 4
    findings.columns["same_as"][1] = findings.names[0]
    text = page(tmp_path / "p.html", findings)
    assert "<img src=x" not in text and text.count("&lt;img src=x onerror") >= 10
    assert not re.search(r"(src|href)=\"(?!#|data:)", text)
    assert len(text) < 40_000 and "default-src 'none'" in text


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome is installed")
def test_a_browser_shows_the_pictures_and_runs_no_foreign_markup(tmp_path):
    page(tmp_path / "p.html", found(changed=HOSTILE))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    shown = subprocess.run([*command, (tmp_path / "p.html").as_uri()], capture_output=True, text=True, timeout=120)
    assert "<title>Unusual items: mine</title>" in shown.stdout and shown.stdout.count("<figure") == 7
    assert re.search(r'<html[^>]* data-drawn="0"', shown.stdout)
