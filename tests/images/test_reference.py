"""Next to a reference: p-values are those of their definition and keep their rate; parts in one position are compared."""

import numpy as np
import pytest
from scipy import ndimage
from tests.refusals import refuses

import vergence
from vergence.decide.feature_sets import FeatureSet, ReferenceScores, combined
from vergence.images.codes import PooledCodes, of_area
from vergence.images.difference import candidates, difference, twin_p_values
from vergence.images.reference import SPLIT, folds_of

pytestmark = pytest.mark.float32


def test_p_values_are_those_of_the_definition():
    r = np.random.default_rng(0)
    s, fold, new = r.normal(size=57), r.integers(0, 5, 57), r.normal(size=(9, 5))
    p = ReferenceScores(s, fold, [""] * 57, np.zeros(9, dtype=bool)).p_values(new)
    for x, value in zip(new, p, strict=True):
        assert value == (1 + sum(s[i] >= x[fold[i]] for i in range(57))) / 58


@pytest.mark.parametrize("width", [3, 120])
def test_rates_hold_out_of_fold(width):
    """400 references of 50 rows: shares of normal rows with p <= a, which the theorem bounds by about 2 a."""
    r, p = np.random.default_rng(0), []
    for _ in range(400):
        x, new = r.standard_t(4, size=(50, width)), r.standard_t(4, size=(5, width))
        places, fold = folds_of(np.arange(50), np.arange(50))
        reference, scores, _ = combined({"vectors": FeatureSet.of_vectors(x[places], new, fold)}, {"vectors": 1.0})
        p += ReferenceScores(reference, fold, [""] * 50, np.zeros(5, dtype=bool)).p_values(scores).tolist()
    for a in (0.05, 0.1, 0.3):
        assert np.mean(np.array(p) <= a) <= a + 3 * np.sqrt(a * (1 - a) / len(p))


def test_duplicates_share_a_fold_and_equal_ones_stand_once():
    digest, group = np.arange(100) // 2, np.arange(100) // 8
    places, fold = folds_of(digest, group)
    assert len(places) == 50
    assert all(len(set(fold[group[places] == g])) == 1 for g in set(group.tolist()))
    places, fold = folds_of(np.arange(SPLIT + 500), np.arange(SPLIT + 500))
    assert np.bincount(fold + 1).tolist() == [750, 750]
    places, fold = folds_of(np.arange(40), np.zeros(40, dtype=np.int64))  # all are duplicates of each other
    assert len(set(fold.tolist())) == 10
    refuses("at least 20 different reference images, found 10", folds_of, np.arange(10), np.arange(10))


def board(seed, size=96):
    r = np.random.default_rng(seed)
    x = np.full((size, size), 40.0)
    for _ in range(25):
        i, j, h, w = *r.integers(4, size - 20, 2), *r.integers(3, 16, 2)
        x[i : i + h, j : j + w] = r.uniform(90, 230)
    return x


def shot(x, r):
    move = tuple(r.integers(-1, 2, 2).tolist())
    y = np.roll(x, move, (0, 1)) * r.uniform(0.96, 1.04) + r.normal(0, 3, x.shape)
    return np.clip(y, 0, 255).astype(np.uint8)


def broken(x, r):
    x = x.copy()
    i, j = r.integers(20, 66, 2)
    x[i : i + 9, j : j + 9] = np.where(x[i : i + 9, j : j + 9].mean() < 128, 250, 10)
    return x


@pytest.mark.parametrize("each", [10, 1], ids=["ten images of each part", "one image of each part"])
def test_parts_in_one_position_are_compared_with_their_nearest(each):
    r, n = np.random.default_rng(0), 60
    known = [shot(board(i % (n // each)), r) for i in range(n)]
    new = [shot(broken(board(i), r) if i < 3 else board(i), r) for i in range(n // each if each == 1 else 6)]
    found = vergence.check([*new, known[9]], against=known, encoder="patches", workers=0)
    order = np.argsort(-np.array(found.items["score"]))
    assert {*order[:3].tolist()} == {0, 1, 2}
    assert found.items["feature_set"][0] == "difference" and found.items["reason"][0].startswith("differs from")
    if each == 1:
        assert np.flatnonzero(found.items["flag"]).tolist() == [0, 1, 2]
        assert [i for i in range(len(new)) if found.frames(i)][:3] == [0, 1, 2]
        assert found.items["leak_of"] == [""] * 60 + ["9"] and found.duplicates["source"].count("reference") == 1  # an equal one
        assert found.summary["leaked"] == 1 and any(one.startswith("1 of 61 images leaked") for one in found.sentences)


def test_differences_are_registered_and_their_light_is_fitted():
    r = np.random.default_rng(0)
    b = board(0)
    correlation, m = difference(1.2 * np.roll(b, (2, -1), (0, 1)) + 9, b)
    assert correlation > 0.99 and m.max() < 5
    assert difference(b, board(1))[0] < 0.7
    assert difference(b, np.zeros((96, 200)))[0] == -1  # another shape
    assert np.isfinite(difference(np.zeros((40, 40)), np.zeros((40, 40)))[1]).all()
    small = r.integers(0, 255, (9, 64), dtype=np.uint8)
    near = candidates(small, np.arange(9) % 3, small, np.arange(9) % 3)
    assert all((near[i] % 3 != i % 3).all() for i in range(9))


def test_twins_are_judged_by_their_own_spread():
    r = np.random.default_rng(0)
    flagged = [bool((twin_p_values(r.gamma(9, size=60))[1] < 1e-3).any()) for _ in range(200)]
    assert np.mean(flagged) < 0.1
    assert (twin_p_values(np.concatenate([r.gamma(9, size=60), np.full(30, 60.0)]))[1][60:] < 0.01).all()


def test_pooled_codes_do_not_depend_on_position_and_see_texture():
    r = np.random.default_rng(0)
    import torch

    smooth = [torch.from_numpy(np.kron(r.uniform(size=(3, 8, 8)), np.ones((1, 8, 8)))).float() for _ in range(12)]
    codes = PooledCodes(smooth)
    a, b = codes(smooth[0]), codes(smooth[0].roll(8, 2))
    noisy = codes((smooth[0] + 0.2 * torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(0))).clamp(0, 1))
    assert (a - b).abs().mean() < 0.2 * (a - noisy).abs().mean()
    assert codes(torch.zeros(3, 1, 5000)).isfinite().all() and codes(torch.ones(3, 2, 2)).isfinite().all()
    assert of_area(torch.zeros(3, 10, 5000), 64, 32).shape[1:] == (32, 192)


def texture(r, size=64):
    """A smooth random image with details, (3, size, size)."""
    x = sum(ndimage.zoom(r.normal(size=(3, size // s, size // s)), (1, s, s), order=1) * s**0.5 for s in (4, 8, 16, 32))
    return np.clip(128 + 40 * x / x.std(), 0, 255).astype(np.uint8)


def test_noise_and_black_are_flagged_next_to_textures():
    r = np.random.default_rng(0)
    known, new = [texture(r) for _ in range(80)], [texture(r) for _ in range(30)]
    new[0] = r.integers(0, 256, (3, 64, 64)).astype(np.uint8)
    new[1] = np.zeros((3, 64, 64), dtype=np.uint8)
    found = vergence.check(new, against=known, fdr=0.2, encoder="patches", workers=0)
    assert {0, 1} == {*np.argsort(-np.array(found.items["score"]))[:2].tolist()}
    assert [bool(flag) for flag in found.items["flag"]][:2] == [True, True]
    assert found.summary["calibration"] == 80


def test_vectors_of_images_count_next_to_a_reference():
    r = np.random.default_rng(0)
    known, new, z = [texture(r) for _ in range(40)], [texture(r) for _ in range(12)], r.normal(size=(52, 8))
    z[3] += 50
    given = {"encoder": "patches", "workers": 0, "vectors": z[:12], "against_vectors": z[12:]}
    found = vergence.check(new, against=known, **given)
    assert int(np.argmax(found.items["score"])) == 3 and found.items["feature_set"][3] == "vectors"
    refuses("vectors of the images and of the reference", vergence.check, new, against=known, vectors=z[:12], workers=0)
    refuses("a reference for `against_vectors`", vergence.check, new, against_vectors=z[:12], workers=0)


def test_a_reference_that_holds_the_new_ones_or_is_plain():
    r = np.random.default_rng(0)
    known = [texture(r, 32) for _ in range(25)]
    found = vergence.check([*known[:3], texture(r, 32)], against=known, encoder="patches", workers=0)
    assert found.items["leak_of"][:3] == ["0", "1", "2"] and not any(found.items["flag"][:3])
    plain = [np.full((3, 32, 32), 100 + i // 10 + i, dtype=np.uint8) for i in range(25)]
    found = vergence.check([known[0], plain[0]], against=plain, encoder="patches", workers=0)
    assert found.items["score"][0] > 5 and np.isfinite(np.array(found.items["score"])).all()


def test_images_of_the_reference_among_the_new_ones_do_not_change_the_others():
    r = np.random.default_rng(0)
    some = [np.kron(r.integers(0, 255, (8, 8, 3)), np.ones((6, 6, 1))) + r.normal(0, 6, (48, 48, 3)) for _ in range(60)]
    x, settings = np.clip(some, 0, 255).astype(np.uint8), {"encoder": "patches", "workers": 0, "map": "pca"}
    apart = vergence.check(x[40:], against=x[:40], **settings)
    inside = vergence.check(x, against=x[:40], **settings)
    assert abs(np.mean(apart.items["p_value"]) - np.mean(inside.items["p_value"][40:])) < 0.1
    assert inside.summary["total"] == 20 and inside.feature_sets().keys() == apart.feature_sets().keys()
    none = vergence.check(x[:30], against=x[:40], **settings).summary["sentences"]
    assert none[:2] == ["No image flagged.", "None was judged: all images are in the reference."]
