"""Uncertainties of embeddings in a file, with baselines: equal to the measures by hand, and refused in one line."""

import numpy as np
import pytest
import torch

from vergence.cli.commands import main
from vergence.learn.evaluation.uncertainty import equalizer, neighbor_is_right, neighbor_spread, ranking
from vergence.learn.runs import uncertainty
from vergence.learn.runs.uncertainty import rank_embeddings, read_embeddings

pytestmark = pytest.mark.float32


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(4), 50)
    noise = rng.uniform(0.1, 2.0, 200)
    z = 3 * np.eye(8)[label] + noise[:, None] * rng.normal(size=(200, 8))
    order = rng.permutation(200)
    return {"z": z[order].astype(np.float32), "label": label[order], "noise": noise[order], "chance": rng.random(200)}


def saved(folder, *, file="emb.npz", **arrays):
    np.savez(folder / file, **arrays)
    return folder / file


def test_columns_are_ranked_beside_controls_as_by_hand(tmp_path, arrays):
    found = rank_embeddings(read_embeddings(saved(tmp_path, **arrays)))
    half = torch.randperm(200, generator=torch.Generator().manual_seed(0))[100:].sort().values.numpy()
    right = neighbor_is_right(arrays["z"][half], arrays["label"][half])
    assert found.items == 100 and found.recall_at_1 == pytest.approx(float(right.float().mean()))
    for name in ("noise", "chance"):
        wanted = ranking(arrays[name][half], right)
        assert (found.scores[name].r_auroc, found.scores[name].aurc) == pytest.approx((wanted["auroc"], wanted["aurc"]))
    assert found.scores["noise"].r_auroc > max(0.7, found.scores["chance"].r_auroc)
    assert {name for name, s in found.scores.items() if s.kind == "model"} == {"noise", "chance"}
    assert {"kNN distance", "norm of z", "neighbor spread"} <= set(found.scores)


def test_a_reference_is_what_controls_compare_with_and_all_items_are_tested(tmp_path, arrays):
    tested = read_embeddings(saved(tmp_path, **arrays))
    found = rank_embeddings(tested, tested.subset(torch.arange(50)))
    right = neighbor_is_right(tested.z, tested.labels)
    assert found.items == 200 and found.scores["noise"].r_auroc == pytest.approx(ranking(arrays["noise"], right)["auroc"])
    equal = equalizer(tested.z[:50])
    spread = neighbor_spread(equal(tested.z[:50]), equal(tested.z))
    assert found.scores["neighbor spread"].r_auroc == pytest.approx(ranking(spread, right)["auroc"])
    with pytest.raises(ValueError, match="of one width, found 8 and 5"):
        rank_embeddings(tested, read_embeddings(saved(tmp_path, **{**arrays, "z": arrays["z"][:, :5]})))


def test_only_as_many_items_are_used_as_said(tmp_path, arrays, monkeypatch):
    monkeypatch.setattr(uncertainty, "ITEMS", 60)
    monkeypatch.setattr(uncertainty, "BANK", 30)
    tested = read_embeddings(saved(tmp_path, **arrays))
    index = torch.linspace(0, 199, 60).long()
    found = rank_embeddings(tested, tested)
    assert found.items == 60 and found.recall_at_1 == rank_embeddings(tested.subset(index), tested).recall_at_1


def test_columns_of_the_command_embed_have_their_meaning(tmp_path, arrays):
    variance = np.stack([arrays["noise"], arrays["noise"]], axis=1)
    also = {"log_density": -arrays["noise"], "variance": variance, "mean": arrays["z"], "name": np.array(["a"] * 200)}
    found = read_embeddings(saved(tmp_path, **also, **arrays))
    assert set(found.columns) == {"noise", "chance", "variance", "log_density"} and found.unused == ["mean"]
    torch.testing.assert_close(found.columns["log_density"], found.columns["noise"])
    torch.testing.assert_close(found.columns["variance"], 2 * found.columns["noise"])


def test_numbers_of_any_type_are_read_and_other_arrays_are_named(tmp_path, arrays):
    n = 200
    odd = {"wide": np.ones((n, 1)), "text": np.array([["a", "b"]] * n), "objects": np.array([None] * n), "short": np.ones(n - 1)}
    odd |= {
        "variance": np.array([["a", "b"]] * n),
        "big": arrays["noise"].astype(">f8"),
        "long": arrays["noise"].astype(np.longdouble),
    }
    found = read_embeddings(saved(tmp_path, **odd, **arrays))
    assert set(found.columns) == {"noise", "chance", "big", "long"}
    assert set(found.unused) == {"wide", "text", "objects", "short", "variance"}
    torch.testing.assert_close(found.columns["big"], found.columns["noise"])


def test_embeddings_come_before_inputs_and_labels_may_be_text(tmp_path, arrays):
    names = np.array(["cat", "dog", "cow", "hen"])
    plain = read_embeddings(saved(tmp_path, **arrays))
    found = read_embeddings(saved(tmp_path, x=np.zeros((200, 3)), **{**arrays, "label": names[arrays["label"]]}))
    torch.testing.assert_close(found.z, plain.z)
    assert torch.equal(neighbor_is_right(found.z, found.labels), neighbor_is_right(plain.z, plain.labels))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": None}, "expected the array label in emb.npz, found z, noise, chance; add it"),
        ({"z": None}, "expected the array z in emb.npz"),
        ({"label": np.zeros(200, dtype=int)}, "at least two classes in emb.npz, found one"),
        ({"label": np.repeat([-1, 0], 100)}, "found -1, which is unknown, in 100 rows"),
        ({"label": np.zeros(3, dtype=int)}, "expected 200 labels in label of emb.npz"),
        ({"chance": np.full(200, np.nan)}, "expected finite numbers in chance of emb.npz"),
        ({"z": np.full((200, 4), np.nan)}, "NaN or infinity in row 0"),
        ({"z": np.zeros((200, 4, 4))}, r"found shape \(200, 4, 4\); embed images first"),
        ({"z": np.zeros(200)}, r"found shape \(200,\)"),
        ({"z": np.ones((200, 4))}, "expected embeddings that differ"),
        ({"z": np.eye(200) * 1e20}, "of at most 1e.15"),
    ],
)
def test_a_file_that_cannot_be_measured_is_refused(tmp_path, arrays, change, words):
    file = saved(tmp_path, **{name: array for name, array in {**arrays, **change}.items() if array is not None})
    with pytest.raises(ValueError, match=words):
        read_embeddings(file)


def test_too_few_items_or_classes_are_refused(tmp_path, arrays):
    tested = read_embeddings(saved(tmp_path, **arrays))
    with pytest.raises(ValueError, match="at least 20 reference items and 2 others, found 19 and 20"):
        rank_embeddings(tested.subset(torch.arange(39)))
    assert rank_embeddings(tested.subset(torch.arange(40))).items == 20
    one = tested.subset((tested.labels == 0).nonzero()[:, 0])
    with pytest.raises(ValueError, match="two classes or more in both halves"):
        rank_embeddings(tested, one)


def test_the_command_shows_the_table_of_a_file(tmp_path, arrays, capsys):
    file, other = saved(tmp_path, **arrays, mean=arrays["z"]), saved(tmp_path, file="other.npz", **arrays)
    main(["evaluate", str(file), "--uncertainty", "--reference", str(other)])
    shown = capsys.readouterr()
    assert "uncertainty of 200 test items" in shown.out and "chance" in shown.out and "scrambled" not in shown.out
    assert shown.err == "note: not used, since they are not a number an item: mean\n"


def test_the_command_says_where_there_is_nothing_to_rank(tmp_path, arrays, capsys):
    main(["evaluate", str(saved(tmp_path, **{**arrays, "z": np.eye(4)[arrays["label"]]})), "--uncertainty"])
    assert "note: R@1 is 1, so there is nothing to rank" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["emb.npz"], "for a file of embeddings add --uncertainty"),
        (["run", "--uncertainty", "--reference", "emb.npz"], "expected --reference with a .npz file of embeddings, found run"),
        (["emb.npz", "--uncertainty", "--reference", "none.npz"], "found none.npz"),
        (["emb.npz", "--uncertainty", "--device", "cpu"], "a run folder with --device"),
        (["emb.npz", "--uncertainty", "--no-probes", "--trust-code"], "a run folder with --no-probes and --trust-code"),
        (["none.npz", "--uncertainty"], "expected a .npz file of embeddings z and label, found none.npz; there is no file"),
    ],
)
def test_the_command_refuses_what_it_cannot_measure(tmp_path, monkeypatch, arrays, arguments, words, capsys):
    saved(tmp_path, **arrays)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", *arguments])
    shown = capsys.readouterr().err
    assert stopped.value.code == 2 and words in shown and shown.count("\n") == 1
