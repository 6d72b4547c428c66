"""The page of a fitted density: its numbers are the model's, for new rows and for those of the fit."""

import re

import numpy as np
import pytest
from tests.refusals import refuses

from vergence import mixtures
from vergence.data.arrays import Pairs
from vergence.tables import models as density

NAMES = ["speed", "<b>", "color=red", "color=blue"]


def pairs(n=300, targets=1):
    r = np.random.default_rng(0)
    red, x, z = r.integers(0, 2, n), r.normal(size=n), r.integers(0, 3, n)
    y = 10 + 3 * x + 2 * red + r.normal(size=n)
    target = y if targets == 1 else np.c_[y, np.where(x > 1, np.nan, x + r.normal(size=n))]  # with gaps
    return Pairs(np.c_[x, z, red, 1 - red], target, (NAMES, ["drag", "lift"][:targets]))


def words(page):
    return [re.sub("<[^>]+>", " ", line).split() for line in page.read_text().replace("</tr>", "\n").splitlines()]


@pytest.mark.parametrize("targets", [1, 2])
def test_the_page_says_what_the_model_says(tmp_path, targets):
    found = pairs(targets=targets)
    file, page = tmp_path / "m.safetensors", tmp_path / "p.html"
    density.fit_density(found, "gaussian", file, settings={}, report=page)
    model, text = mixtures.load(file), page.read_text()
    middle = [np.quantile(found.context[:, 0], 0.5, method="nearest"), 1.0, *(found.context[:, 2:].mean(0) > 0.5)]
    low, high = np.asarray(model.intervals([middle], 0.9)).reshape(targets, 2)[0]
    row = next(line for line in words(page) if line[:4] == ["all", "columns", "have", "middle"])
    assert row[5:8] == [f"{v:.4g}" for v in (np.ravel(model.quantile([middle], 0.5))[0], low, high)]
    changed = [" ".join(line[: -3 * targets]) for line in words(page) if len(line) > 3 and line[1] == "is"]
    assert {"color is red", "color is blue", "&lt;b&gt; is 0", "&lt;b&gt; is 2"} <= set(changed) and len(changed) == 7
    assert changed[0].startswith("speed is"), "the largest change is first"
    assert "<b>" not in text and "Rows that the model was not fitted to" in text and "The models that were compared" not in text
    assert text.count('class="area"') == targets * 3, "an effect of each number, and a band of the probabilities"
    assert f"of {len(model.held_out_pit_)} rows have a drag inside its 90 % interval" in text
    other = tmp_path / "other.html"
    other.write_text("mine")
    refuses("an earlier page", density.fit_density, found, "gaussian", file, settings={}, report=other)
    refuses(r"ends in \.html", density.fit_density, found, "gaussian", file, settings={}, report=tmp_path / "p.txt")


def test_the_page_of_a_choice_shows_the_models(tmp_path):
    page = tmp_path / "p.html"
    found = density.fit_density(pairs(120), "auto", tmp_path / "m.safetensors", settings={}, seconds=0.0, report=page)
    assert found.selection.sentence.split(" (")[0] in page.read_text()
    assert "The model was fitted to these rows too" in page.read_text() and "The models that were compared" in page.read_text()
