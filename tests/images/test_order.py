"""Without a reference: the order, what it resists, and what marks do to it."""

import numpy as np
import pytest

import vergence
from vergence.images.order import learned


def items(n=300, anomalies=20, seed=0):
    """Vectors of which some are anomalous in one direction, and as many far out in others."""
    r = np.random.default_rng(seed)
    x = r.normal(size=(n, 8))
    x[:anomalies, 0] += 3.5
    x[anomalies : 2 * anomalies] *= 2.2
    return x


@pytest.mark.parametrize("share", [0.01, 0.2])
def test_anomalies_come_first_and_do_not_set_the_scale(share):
    r = np.random.default_rng(0)
    x = r.normal(size=(400, 6))
    n = int(share * 400)
    x[:n] += 8 * r.normal(size=(n, 6))
    found = vergence.check(x)
    assert set(found.most_anomalous(n)) >= set(range(n)) - {int(np.abs(x[:n]).max(1).argmin())}
    assert not any(found.items["flag"]) and np.isnan(found.items["q_value"]).all() and found.summary["rate"] == "none"


def test_marks_put_similar_items_first_and_few_marks_do_nothing():
    x = items()
    plain = vergence.check(x)
    score = np.array(plain.items["score"])
    marks = {str(i): "anomaly" for i in range(5)} | {str(i): "normal" for i in range(20, 26)}
    again = vergence.check(x, confirmed=marks)
    rank = np.argsort(np.argsort(-np.array(again.items["score"])))
    before = np.argsort(np.argsort(-score))
    assert rank[5:20].mean() < before[5:20].mean() - 10 and rank[26:40].mean() > before[26:40].mean()
    note = next(
        sentence for sentence in again.summary["sentences"] if sentence.startswith("The order follows 11 marks; moved up: ")
    )
    assert " (from " in note and " to " in note
    few = vergence.check(x, confirmed={"0": "anomaly", "21": "normal"})
    assert not any("The order follows" in sentence for sentence in few.summary["sentences"])


@pytest.mark.parametrize("seed", range(3))
def test_marks_that_say_nothing_new_hardly_change_the_order(seed):
    """Anomalies of no kind: those that are marked are far out in random directions."""
    r = np.random.default_rng(seed)
    z, score = r.normal(size=(400, 10)), r.normal(size=400)
    first = np.argsort(-score)
    marked = np.isin(np.arange(400), first[:20])
    anomaly = marked & (r.random(400) < 0.5)
    after = learned(score, z, anomaly, marked & ~anomaly)
    assert np.corrcoef(after[~marked], score[~marked])[0, 1] > 0.5
