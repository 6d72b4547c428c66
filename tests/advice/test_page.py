"""The page of an advice: its words and numbers are the advice's, it loads nothing, and a browser draws it."""

import html
import re
import shutil
import subprocess

import numpy as np
import pytest

from vergence.advice.closed_forms import advise
from vergence.advice.page import write_advice

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def advice():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=600)
    x = rng.normal(size=(600, 12)) + 2 * y[:, None] * (np.arange(12) < 3)
    parts = {"a<b>": lambda X, g: X * 0.9, "shake": lambda X, g: X + 0.5 * X.new_tensor(rng.normal(size=X.shape))}
    return {known: advise(x, parts, labels=y if known else None, n_components=3) for known in (True, False)}


def page(advice, tmp_path):
    path = write_advice(advice, tmp_path / "report.html", name="mine & <yours>", command="vergence advise 'a<b>'")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("known", [True, False])
def test_words_numbers_and_names(advice, known, tmp_path):
    text = page(advice[known], tmp_path)
    assert "mine &amp; &lt;yours&gt;" in text and "<yours>" not in text and "<b>shake" not in text
    for sentence in advice[known].words:
        assert sentence.split(":")[0] in html.unescape(text)
    for row in advice[known].components:
        assert f"<td>{100 * row.overlap:.1f}</td>" in text
    assert ("margin, points" in text) == known
    assert "without a&lt;b&gt;" in text or advice[known].augmentations[0].alignment is None
    assert not re.search(r"(src|href)=\"(?!#|data:)", text) and "://" not in re.sub(r"<script.*?</script>", "", text, flags=re.S)
    charts = {"spectra"} | ({"accuracy"} if known else set())
    assert set(re.findall(r'data-figure="(\w+)"', text)) == charts


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome is installed")
def test_a_browser_draws_every_chart(advice, tmp_path):
    page(advice[True], tmp_path)
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000", "--dump-dom"]
    found = subprocess.run([*command, (tmp_path / "report.html").as_uri()], capture_output=True, text=True, timeout=120)
    assert re.search(r'<html[^>]* data-drawn="2"', found.stdout)
