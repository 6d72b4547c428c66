"""Several modalities: pairs and all at once, missing rows, two as pairs are, and runs that come back."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import vergence
from vergence.learn.methods.modalities import ModalityMethod
from vergence.learn.objectives.gje import GJE
from vergence.learn.objectives.vicreg import VICReg

QUICK = {"epochs": 2, "batch_size": 64, "device": "cpu", "precision": "fp32", "knn_every": 0, "projector": (4,)}


def method(objective, names="abc", **settings):
    torch.manual_seed(1)
    return ModalityMethod({name: (nn.Linear(5, 4), nn.Linear(4, 4)) for name in names}, objective, **settings)


def views(n=30):
    """Three modalities; the last lacks a third of the items, and the second one item."""
    x = torch.randn(n, 5)
    parts = [x + 0.3 * torch.randn(n, 5) for _ in range(3)]
    parts[1][4], parts[2][::3] = torch.nan, torch.nan
    return tuple(parts)


@pytest.mark.parametrize("kind", [VICReg, lambda dim: GJE(dim, tuple("abc"))])
@pytest.mark.parametrize("anchor", [None, "b"])
def test_terms_are_the_mean_over_pairs_of_the_items_that_have_both(kind, anchor):
    several, parts = method(kind(4), anchor=anchor), views()
    terms, means = several(parts, lambda z: z), {}
    pairs = [pair for pair in itertools.combinations(range(3), 2) if anchor is None or 1 in pair]
    for a, b in pairs:
        both = ~(parts[a] + parts[b]).isnan().any(1)
        za, zb = (several.branch("abc"[i])(parts[i][both]) for i in (a, b))
        one = type(several.objective)(4)(za, zb)
        means = {term: means.get(term, 0) + value / len(pairs) for term, value in one.items()}
    assert all(torch.allclose(terms[term], means[term]) for term in means) and terms.keys() == means.keys()
    sum(terms.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in several.parameters() if p.requires_grad)
    several.after_step()
    assert len(several.embeddings()) == 30


def test_all_modalities_at_once_and_none():
    several, x = method(GJE(4, tuple("abc"), momentum=0.0, shrinkage=0.0)), torch.randn(3, 30, 5)
    terms = several(tuple(x), lambda z: z)
    z = {name: several.branch(name)(part) for name, part in zip("abc", x, strict=True)}
    assert terms == several.objective.terms(z)
    x[2, 5:] = x[1, :8] = torch.nan
    terms = several(tuple(x), lambda z: z)
    whole = torch.cat([several.branch(name)(part) for name, part in zip("abc", x, strict=True)], 1)
    several.after_step()  # no item has all of them: the density stays
    assert whole.isnan().any(1).all() and torch.equal(several.objective.moving.mean, torch.zeros(12))
    x[1:, 1:] = torch.nan
    assert several(tuple(x), lambda z: z)["empty"] == 0 and several.diagnostics() == {}


def samples(n=300):
    rng = np.random.default_rng(0)
    s = rng.normal(size=(n, 3))
    a, b = (s @ rng.normal(size=(3, d)) + 0.3 * rng.normal(size=(n, d)) for d in (9, 6))
    image = np.clip(100 + 30 * s[:, :1, None] + rng.normal(size=(n, 8, 8)), 0, 255).astype(np.uint8)
    image = np.ma.masked_array(image, mask=np.broadcast_to((np.arange(n) % 4 == 0)[:, None, None], image.shape))
    a[:3] = np.nan
    return {"a": a.astype("f4"), "image": image, "b": b.astype("f4")}


@pytest.mark.float32
@pytest.mark.parametrize("objective", ["gje", "vicreg"])
def test_two_modalities_are_pairs(objective):
    a, b = (samples()[name][3:] for name in ("a", "b"))
    pairs, several = (vergence.train(data, objective=objective, **QUICK) for data in ((a, b), {"a": a, "b": b}))
    assert torch.equal(pairs.embed(a), several.embed(a))
    assert torch.equal(pairs.embed(b, side="target", projected=True), several.embed(b, side="b", projected=True))


@pytest.mark.float32
def test_a_run_on_modalities_comes_back_and_answers_in_any_direction(tmp_path):
    data, labels = samples(), np.arange(300) % 2
    run = vergence.train(data, out=tmp_path / "run", labels=labels, target_encoder="small", **QUICK)
    again = vergence.load(tmp_path / "run", data=data, labels=labels)
    for name, gaps in (("a", np.arange(3)), ("image", np.arange(0, 300, 4))):
        z = run.embed(data, side=name, projected=True)
        assert torch.equal(z.isnan().any(1).nonzero()[:, 0], torch.as_tensor(gaps))
        assert torch.equal(z.nan_to_num(), again.embed(data[name], side=name, projected=True).nan_to_num())
    both = {name: data[name] for name in ("a", "image")}
    p, one = again.conditional(both, of="b"), again.conditional({"a": data["a"]}, of="b")
    assert torch.allclose(p.variance[4], one.variance[4]) and (p.variance[5] < one.variance[5]).all()
    assert again.folder.metadata.modalities == {"a": (9,), "image": (1, 8, 8), "b": (6,)}
    assert vergence.train(data, out=tmp_path / "run", labels=labels, resume=True).anomaly_score(data["a"][3:]).shape == (297,)
    for call, words in (
        (lambda: run.retrieve(data["a"], data["b"]), "one on modalities"),
        (lambda: run.embed(data, side="c"), "a modality among a, image, b"),
        (lambda: vergence.train(data, anchor="c", **QUICK), "anchor among"),
        (lambda: vergence.train({"a": data["b"]}, **QUICK), "at least 2 modalities"),
        (lambda: vergence.train({"a": data["b"], "b": np.ma.masked_greater(data["b"], 1)}, **QUICK), "masked as a whole"),
        (lambda: vergence.train(data, **{**QUICK, "objective": "byol"}), "without a teacher"),
        (lambda: vergence.train({"a": data["b"], "b": data["b"][:9]}), "as many of both"),
        (lambda: vergence.train({"a": data["b"], "b": data["b"] * np.nan}), "rows of modality b"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.float32
def test_images_that_some_items_lack_may_be_the_first_modality():
    data = {name: samples()[name] for name in ("image", "b", "a")}
    run = vergence.train(data, **{**QUICK, "encoder": "small"})
    assert run.detector().normal.shape[0] and run.anomaly_score(data["image"].data[1:4]).isfinite().all()
