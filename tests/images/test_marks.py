"""What follows from marks: bounds that hold whenever a person stops, and sentences about lists whose truth is known."""

import re

import numpy as np
import pytest
from PIL import Image

import vergence
from vergence.images.marks import LAMBDA, _evidence, at_random, least_share, marks_in_words, most_left
from vergence.images.review import Review


def test_evidence_is_the_mean_of_products_of_ratios():
    x, p = np.array([1.0, 0.0, 1.0]), np.array([0.2, 0.5, 0.3])
    products = [np.prod(np.exp(one * x) / (1 - p + p * np.exp(one))) for one in LAMBDA]
    assert np.isclose(_evidence(x, p), np.log(np.mean(products)))


WRONG = 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300)


@pytest.mark.parametrize("p", [np.full(60, 0.05), np.full(60, 0.5), np.linspace(0.95, 0.05, 60)])
def test_a_share_is_above_its_bound_at_all_times_at_once(p):
    """A bound is above the mean share where the evidence against that share is above the log of 20."""
    marks = np.random.default_rng(0).random((300, 60)) < p
    wrong = [any(_evidence(x[:t], p[:t].mean()) > np.log(20) for t in range(1, 61, 3)) for x in marks]
    assert np.mean(wrong) <= WRONG
    x = marks[0].astype(float)
    assert np.isclose(_evidence(x, least_share(x)), np.log(20)) if least_share(x) else _evidence(x, 1e-9) <= np.log(20)


@pytest.mark.parametrize("anomalies", [0, 5, 60])
def test_anomalies_among_the_others_are_below_their_bound_at_all_times_at_once(anomalies):
    rng, x = np.random.default_rng(0), np.arange(120) < anomalies
    wrong = [
        any(most_left(one[:t], 120) < anomalies for t in (10, 20, 40, 80)) for one in (rng.permutation(x) for _ in range(60))
    ]
    assert np.mean(wrong) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 60) and most_left(x, 120) == anomalies


def reviewed(names, anomaly, index, rank):
    review = Review.of({names[i]: "anomaly" if anomaly[i] else "normal" for i in index})
    return Review(review.anomaly, review.normal, ranks={names[i]: int(rank[i]) for i in index})


def test_sentences_are_true_of_a_list_whose_truth_is_known():
    rng = np.random.default_rng(3)
    anomaly = np.arange(1000) < 100
    score, digest = rng.normal(size=1000) + 2 * anomaly, rng.permutation(1000)
    rank, names, order = 1 + np.argsort(np.argsort(-score)), [f"{i}.png" for i in range(1000)], np.argsort(-score)
    marked = {*order[:50].tolist(), *at_random(digest)[:200].tolist()}
    top, rest, further = marks_in_words(reviewed(names, anomaly, marked, rank), names, digest, lambda without: score)
    first = next(k for k in range(1000) if order[k] not in marked)
    hits = int(anomaly[order[:first]].sum())
    assert top.startswith(f"You marked {hits} of the first {first} as anomalies. With 95 % confidence, at least ")
    most, others = (int(n.replace(",", "")) for n in re.search(r"at most ([\d,]+) of all ([\d,]+) others", rest).groups())
    assert others == 1000 - first and most >= 100 - hits
    more = [i for i in order[first:].tolist() if i not in marked][: int(re.search(r"about ([\d,]+) more", further)[1])]
    assert 0.8 <= (anomaly[sorted(marked)].sum() + anomaly[more].sum()) / 100 <= 1.0


def test_few_marks_give_little_and_scattered_ones_nothing():
    names, score, digest = [f"{i}.png" for i in range(300)], np.arange(300.0), np.arange(300)[::-1].copy()
    rank, anomaly = 300 - np.arange(300), np.zeros(300, dtype=bool)
    for marked, notes in (
        (range(291, 300), []),
        (range(150, 170), []),
        (range(288, 300), ["You marked 0 of the first 12 as anomalies."]),
    ):
        assert marks_in_words(reviewed(names, anomaly, marked, rank), names, digest, lambda without: score) == notes


def test_duplicates_of_one_image_do_not_stand_together_at_random():
    place = np.argsort(at_random(np.repeat([5, 3, *range(10, 110)], [50, 50, *[1] * 100])))
    assert np.std(place[:50]) > 30 and sorted(place) == list(range(200))


def test_marks_are_read_with_their_ranks(tmp_path):
    (tmp_path / "confirmed.csv").write_text("path,mark,rank\na.png,anomaly,2\nb.png,normal,\nc.png,Normal,7\n")
    review = Review.read(tmp_path / "confirmed.csv")
    assert review == Review(["a.png"], ["b.png", "c.png"], [], {"a.png": 2, "c.png": 7})
    (tmp_path / "bare.csv").write_text("b.png,normal\na.png,anomaly\n")
    bare = Review.read(tmp_path / "bare.csv")
    assert (bare.anomaly, bare.normal) == (["a.png"], ["b.png"])
    (tmp_path / "wrong.csv").write_text("path,mark\na.png,perhaps\n")
    with pytest.raises(ValueError, match="marks: anomaly, normal, reference anomaly"):
        Review.read(tmp_path / "wrong.csv")


def test_images_marked_normal_are_the_reference_of_the_next_check(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for i in range(60):
        Image.fromarray(rng.integers(0, 255, (24, 24, 3)).astype(np.uint8)).save(tmp_path / "in" / f"{i}.png")
    marks = {f"{i}.png": "normal" for i in range(45)} | {"50.png": "anomaly"}
    settings = {"encoder": "patches", "workers": 0, "map": "pca"}
    first = vergence.check(tmp_path / "in", confirmed=marks, out=tmp_path / "out", **settings)
    assert "The 45 images marked normal can be a reference: `against='normal.csv'`." in first.summary["sentences"]
    again = vergence.check(tmp_path / "in", against=tmp_path / "out" / "normal.csv", out=tmp_path / "out", **settings)
    assert (tmp_path / "out" / "normal.csv").is_file()  # the reference of these results
    assert again.summary["calibration"] == 45 and again.summary["total"] == 15 and again.summary["leaked"] == 0
    assert "Not judged: 45 images of the reference itself." in again.summary["sentences"]
    few = vergence.check(tmp_path / "in", confirmed=dict(list(marks.items())[:39]), out=tmp_path / "few", **settings)
    assert not (tmp_path / "few" / "normal.csv").exists() and not any("normal.csv" in s for s in few.summary["sentences"])
