"""The page of an advice: its words and numbers are the advice's, and it loads nothing."""

import html
import re

import numpy as np
import pytest

from vergence.advice.page import write_advice
from vergence.advice.views import advise


@pytest.fixture(scope="module")
def advice():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 12)) + 2 * rng.integers(2, size=600)[:, None] * (np.arange(12) < 3)
    parts = {"a<b>": lambda X, g: X * 0.9, "shake": lambda X, g: X + 0.5 * X.new_tensor(rng.normal(size=X.shape))}
    return advise(x, parts, n_components=3)


def test_words_numbers_and_names(advice, tmp_path):
    path = write_advice(advice, tmp_path / "report.html", name="mine & <yours>", command="vergence advise 'a<b>'")
    text = path.read_text(encoding="utf-8")
    assert "mine &amp; &lt;yours&gt;" in text and "<yours>" not in text and "<b>shake" not in text
    for sentence in advice.words:
        assert sentence.split(":")[0] in html.unescape(text)
    for row in advice.augmentations:
        assert f"<td>{100 * row.strength:.1f}</td><td>{100 * row.unchanged:.1f}</td>" in re.sub(r"\s+(?=<)", "", text)
    assert "without a&lt;b&gt;" in text  # without the other one joint embedding is a tie
    assert not re.search(r"(src|href)=\"(?!#|data:)", text) and "://" not in re.sub(r"<script.*?</script>", "", text, flags=re.S)
