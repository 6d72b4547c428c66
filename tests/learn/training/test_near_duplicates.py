"""Planted duplicates are found, different images are not, and nothing of the order of N x N is held."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from vergence.learn.training.near_duplicates import mild_views, near_duplicates, near_groups, similarity_threshold, thumbnails
from vergence.utils import neighbors


def pictures(n, size=32, seed=0):
    """Smooth random images of uint8, all different."""
    noise = torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    smooth = F.interpolate(noise, (size, size), mode="bicubic", align_corners=False)
    return (127 + 60 * smooth).clamp(0, 255).byte()


def embed(images):
    x = images.float() / 255 if images.dtype == torch.uint8 else images
    z = F.adaptive_avg_pool2d(x, 8).flatten(1)
    return z - z.mean(1, keepdim=True)


def planted(n=400, copies=40):
    x = pictures(n)
    views = mild_views(x[:copies], torch.Generator().manual_seed(1))
    return torch.cat([x.float() / 255, views]), n, copies


def test_near_duplicates_are_found_with_their_own_threshold():
    x, n, copies = planted()
    z = embed(x)
    threshold = similarity_threshold(embed(x[:n]), embed(mild_views(x[:n], torch.Generator().manual_seed(2))))
    assert threshold.recall > 0.9 and threshold.different < threshold.threshold < 1
    found = near_duplicates(z, threshold=threshold.threshold)
    truth = {(i, n + i) for i in range(copies)}
    assert len(truth & set(map(tuple, found.pairs.tolist()))) >= 0.9 * copies and len(found) <= copies
    assert (np.diff(found.similarity) <= 0).all()
    duplicated = similarity_threshold(z, embed(mild_views(x, torch.Generator().manual_seed(2))))
    assert duplicated.threshold == pytest.approx(threshold.threshold, abs=0.01)  # a tenth of duplicates hardly moves it


@pytest.mark.parametrize(("n", "copies"), [(30, 2), (40, 7), (100, 11)])
def test_copies_of_every_image_hardly_move_the_threshold_and_are_one_group(n, copies):
    x = pictures(n)
    generator = torch.Generator().manual_seed(1)
    every = torch.cat([x.float() / 255, *(mild_views(x, generator) for _ in range(copies))])
    alone = similarity_threshold(embed(x), embed(mild_views(x, generator)))
    among = similarity_threshold(embed(every), embed(mild_views(every, generator)))
    assert among.recall > 0.9 and math.log((1 - among.threshold) / (1 - alone.threshold)) == pytest.approx(0, abs=0.3)
    assert among.different < among.threshold
    label = near_groups(thumbnails(every)).reshape(copies + 1, n)
    assert (label == label[:1]).all(0).mean() > 0.9 and len(np.unique(label)) >= n
    twice = torch.cat([x, x])
    assert similarity_threshold(embed(twice), embed(mild_views(twice, generator))).recall > 0.9


def test_pairs_equal_those_of_the_full_table(monkeypatch):
    z = torch.randn(90, 4)
    unit = F.normalize(z)
    table = (unit @ unit.T).numpy()
    truth = {(i, j) for i in range(90) for j in range(i + 1, 90) if table[i, j] >= 0.8}
    monkeypatch.setattr(neighbors, "NUMBERS", 1000)  # blocks of eleven rows
    found = near_duplicates(z, threshold=0.8)
    assert set(map(tuple, found.pairs.tolist())) == truth and len(found) == len(truth) > 20
    np.testing.assert_allclose(found.similarity, [table[i, j] for i, j in found.pairs], rtol=1e-12)
    assert set(map(tuple, near_duplicates(z.numpy(), threshold=0.8).pairs.tolist())) == truth


def saved_again(x):
    """The same pictures: brighter, smaller and back, noisy."""
    r = torch.Generator().manual_seed(5)
    smaller = F.interpolate(x.float(), 28, mode="bilinear", antialias=True)
    back = F.interpolate(smaller, x.shape[-1], mode="bilinear", antialias=True)
    noisy = x + 3 * torch.randn(x.shape, generator=r, dtype=torch.float32)
    kinds = torch.arange(len(x)) % 3
    y = torch.where((kinds == 0)[:, None, None, None], 1.08 * x.float(), back)
    return torch.where((kinds == 2)[:, None, None, None], noisy, y).clamp(0, 255).byte()


def test_near_groups_join_copies_and_equal_images_and_nothing_else():
    x = pictures(400)
    every = torch.cat([x, saved_again(x[:60]), x[60:70]])
    equal = [image.numpy().tobytes() for image in every]
    label = near_groups(thumbnails(every), equal)
    assert (label[400:] == label[:70]).mean() > 0.9 and (label[460:] == label[60:70]).all()
    assert len(np.unique(label[:400])) == 400 and label.min() == 0 and label.max() == len(np.unique(label)) - 1
    assert (near_groups(thumbnails(every), equal) == label).all()
    assert len(np.unique(near_groups(thumbnails(x[:1].expand(30, -1, -1, -1)), np.arange(30)))) == 30  # nothing to tell apart by


def test_equal_images_end_the_search_soon():
    x = pictures(600, size=16)
    x[100:] = x[0]
    assert len(np.unique(near_groups(x))) == 600
    with pytest.raises(ValueError, match="expected few near-duplicates"):
        near_duplicates(embed(x), threshold=0.99)


@pytest.mark.slow
def test_a_kind_of_image_is_not_a_group_of_copies():
    x = pictures(6000, size=16, seed=3)
    x[:80] = (
        (x[:1].float() + 2 * torch.randn(80, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float32))
        .clamp(0, 255)
        .byte()
    )
    assert len(np.unique(near_groups(x)[:80])) == 80 and len(np.unique(near_groups(x[30:])[:50])) == 1


@pytest.mark.parametrize("least", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("two", [False, True])
def test_pairs_are_those_of_all_comparisons(monkeypatch, least, two):
    monkeypatch.setattr(neighbors, "BLOCK", 37)
    r = torch.Generator().manual_seed(0)
    a, b = (F.normalize(torch.randn(n, 3, generator=r) + torch.tensor([1.0, 0, 0]), dim=1) for n in (300, 200))
    table = a @ (b if two else a).T
    i, j = (table >= least).nonzero(as_tuple=True)
    wanted = {(p, q) for p, q in zip(i.tolist(), j.tolist(), strict=True) if two or p < q}
    found = [
        (p, q, s)
        for i, j, c in neighbors.similar_pairs(a, b if two else None, least)
        for p, q, s in zip(i.tolist(), j.tolist(), c.tolist(), strict=True)
    ]
    assert {(p, q) for p, q, _ in found} == wanted and len(found) == len(wanted)
    assert all(abs(s - float(table[p, q])) < 1e-12 for p, q, s in found)
