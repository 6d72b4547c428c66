"""Uncertainties of embeddings in a file, beside controls: equal to the measures by hand, and refused in one line."""

import numpy as np
import pytest
import torch

from vergence.cli.commands import main
from vergence.evaluation.uncertainty import equalizer, neighbor_is_right, neighbor_spread, ranking
from vergence.runs import embeddings

pytestmark = pytest.mark.float32


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(4), 50)
    noise = rng.uniform(0.1, 2.0, 200)
    z = 3 * np.eye(8)[label] + noise[:, None] * rng.normal(size=(200, 8))
    order = rng.permutation(200)
    return {"z": z[order].astype(np.float32), "label": label[order], "noise": noise[order], "chance": rng.random(200)}


def saved(folder, **arrays):
    np.savez(folder / "emb.npz", **arrays)
    return folder / "emb.npz"


def test_columns_are_ranked_beside_controls_as_by_hand(tmp_path, arrays):
    found = embeddings.measure(embeddings.read(saved(tmp_path, **arrays)))
    right = neighbor_is_right(arrays["z"][1::2], arrays["label"][1::2])
    assert found.items == 100 and found.recall_at_1 == pytest.approx(float(right.float().mean()))
    for name in ("noise", "chance"):
        wanted = ranking(arrays[name][1::2], right)
        assert (found.scores[name].r_auroc, found.scores[name].aurc) == pytest.approx((wanted["auroc"], wanted["aurc"]))
    assert found.scores["noise"].r_auroc > 0.65 > found.scores["chance"].r_auroc
    assert {name for name, s in found.scores.items() if s.kind == "model"} == {"noise", "chance"}
    assert {"kNN distance", "norm of z", "probe entropy", "neighbor spread"} <= set(found.scores)


def test_a_reference_is_what_controls_compare_with_and_all_items_are_tested(tmp_path, arrays):
    tested = embeddings.read(saved(tmp_path, **arrays))
    found = embeddings.measure(tested, tested.subset(torch.arange(50)))
    right = neighbor_is_right(tested.z, tested.labels)
    assert found.items == 200 and found.scores["noise"].r_auroc == pytest.approx(ranking(arrays["noise"], right)["auroc"])
    with pytest.raises(ValueError, match="of one width, found 8 and 5"):
        embeddings.measure(tested, embeddings.read(saved(tmp_path, **{**arrays, "z": arrays["z"][:, :5]})))
    equal = equalizer(tested.z[:50])
    spread = neighbor_spread(equal(tested.z[:50]), equal(tested.z))
    assert found.scores["neighbor spread"].r_auroc == pytest.approx(ranking(spread, right)["auroc"])


def test_columns_of_the_command_embed_have_their_meaning(tmp_path, arrays):
    variance = np.stack([arrays["noise"], arrays["noise"]], axis=1)
    found = embeddings.read(
        saved(tmp_path, log_density=-arrays["noise"], variance=variance, mean=arrays["z"], name=np.array(["a"] * 200), **arrays)
    ).columns
    assert set(found) == {"noise", "chance", "variance", "log_density"}
    torch.testing.assert_close(found["log_density"], found["noise"])
    torch.testing.assert_close(found["variance"], 2 * found["noise"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": None}, "expected the array label in emb.npz"),
        ({"label": np.zeros(200, dtype=int)}, "at least two classes"),
        ({"chance": np.full(200, np.nan)}, "expected finite numbers in chance of emb.npz"),
        ({"z": np.zeros((200, 4, 4))}, "expected embeddings z .* found images or pairs"),
        ({"context": np.zeros((200, 2)), "target": np.zeros((200, 2))}, "found images or pairs"),
    ],
)
def test_a_file_that_cannot_be_measured_is_refused(tmp_path, arrays, change, words):
    file = saved(tmp_path, **{name: array for name, array in {**arrays, **change}.items() if array is not None})
    with pytest.raises(ValueError, match=words):
        embeddings.read(file)


def test_too_few_items_are_refused(tmp_path, arrays):
    with pytest.raises(ValueError, match="expected at least 4 items, found 3"):
        embeddings.measure(embeddings.read(saved(tmp_path, **{name: array[:3] for name, array in arrays.items()})))


def test_the_command_shows_the_table_of_a_file(tmp_path, arrays, capsys):
    file = str(saved(tmp_path, **arrays))
    main(["evaluate", file, "--uncertainty", "--reference", file])
    shown = capsys.readouterr().out
    assert "uncertainty of 200 test items" in shown and "chance" in shown and "scrambled" not in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["emb.npz"], "for a file of embeddings add --uncertainty"),
        (["run", "--uncertainty", "--reference", "emb.npz"], "expected a .npz file of embeddings"),
        (["emb.npz", "--uncertainty", "--reference", "none.npz"], "found none.npz"),
    ],
)
def test_the_command_refuses_what_it_cannot_measure(tmp_path, monkeypatch, arrays, arguments, words, capsys):
    saved(tmp_path, **arrays)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", *arguments])
    shown = capsys.readouterr().err
    assert stopped.value.code == 2 and words in shown and shown.count("\n") == 1
