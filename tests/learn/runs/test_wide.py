"""The wide features of an encoder patches: written by embed, probed by evaluate, and refused for other encoders."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import vergence
from vergence.cli.commands import main
from vergence.learn.encoders.patch_maps import wide_features

pytestmark = pytest.mark.float32


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    digits = load_digits()
    folder = tmp_path_factory.mktemp("wide")
    np.savez(folder / "digits.npz", x=(digits.images[:600] * 15).astype(np.uint8)[..., None], labels=digits.target[:600])
    settings = {"encoder": "patches:atoms=24,directions=16,dim=4", "device": "cpu", "precision": "fp32"}
    return vergence.train(str(folder / "digits.npz"), out=folder / "run", **settings)


def test_the_ridge_probe_knows_more_of_the_wide_features_than_of_a_narrow_embedding(run):
    found = vergence.evaluate(run, wide=True)
    wide, z = found.representations["wide"], found.representations["z"]
    assert wide.dim == run.method.encoder[1].settings.features > z.dim == 4
    assert wide.ridge > max(0.9, z.ridge) and 0 < z.ridge < 1 and wide.collapse is wide.knn is wide.probe is None
    table = found.table()
    at = table["representation"].index("wide")
    assert table["ridge"][at] == wide.ridge and table["effective_rank"][at] is None
    assert "wide" in run.report().read_text()


def test_the_wide_features_give_the_embedding_and_are_written(run, tmp_path, capsys):
    x = np.random.default_rng(0).integers(256, size=(20, 8, 8, 1), dtype=np.uint8)
    np.save(tmp_path / "new.npy", x)
    main(["embed", str(run.folder.path), str(tmp_path / "new.npy"), "--wide", "--out", str(tmp_path / "z.npz")])
    written, encoder = np.load(tmp_path / "z.npz"), run.method.encoder[1]
    z = torch.from_numpy(written["wide"]) @ encoder.weight.T.cpu() + encoder.offset.cpu()
    np.testing.assert_allclose(z.detach().numpy(), written["z"], rtol=1e-4, atol=1e-4)
    assert "wrote" in capsys.readouterr().out


def test_other_encoders_have_no_wide_features():
    with pytest.raises(ValueError, match="wide features"):
        wide_features(torch.nn.Linear(2, 2))
