"""Features of one pass: their names, their values against the encoder's own, and empty batches."""

import pytest
import torch

from vergence.learn.encoders.building import encoder
from vergence.learn.encoders.config import Patches
from vergence.learn.encoders.patch_maps import PatchEncoder, patch_dictionary
from vergence.learn.methods.paired import PairedMethod
from vergence.learn.objectives.gje import GJE
from vergence.learn.objectives.vje import VJE
from vergence.learn.runs.features import RunFeatures

pytestmark = pytest.mark.float32


def method(name, shape, objective=VJE):
    mean, std = torch.full((shape[0],), 0.4), torch.full((shape[0],), 0.3)
    net = encoder(name, shape, mean, std)
    dim = net(torch.rand(2, *shape)).shape[1]
    return PairedMethod(net, objective(dim)).eval()


def test_z_is_the_embedding_and_patches_are_the_dictionarys_responses():
    """Bytes and the same numbers as floats have the same features."""
    m, x = method("small", (3, 32, 32)), torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    maps = patch_dictionary([x], x.shape[1:], Patches(atoms=8, stride=2, pool=1, second=0)).float()
    with torch.no_grad():
        found, plain = RunFeatures(m, (3, 32, 32), maps)(x), RunFeatures(m, (3, 32, 32))(x)
        of_floats = RunFeatures(m, (3, 32, 32), maps)(x.float() / 255)
        assert torch.equal(found["z"], m.encoder(x)) and torch.equal(found["patches"], maps(x.float() / 255))
    assert list(found) == ["pixels", "patches", "z"] and list(plain) == ["pixels", "z"]
    torch.testing.assert_close(found["patches"], of_floats["patches"])


def test_vectors_have_their_inputs():
    m, x = method("mlp", (7,)), torch.randn(5, 7)
    with torch.no_grad():
        found = RunFeatures(m, (7,))(x)
    assert torch.equal(found["inputs"], x) and list(found) == ["inputs", "z"]


def test_patches_are_averaged_over_cells():
    m = method("patches:atoms=6,patch=3,pool=2,dim=5,directions=9", (1, 8, 8), GJE)
    x = torch.rand(4, 1, 8, 8)
    with torch.no_grad():
        found = RunFeatures(m, (1, 8, 8))(x)
        maps = next(net for net in m.encoder.modules() if isinstance(net, PatchEncoder)).maps
        f = maps(x).view(4, 12, 4)
    assert list(found) == ["pixels", "patches", "z"]
    torch.testing.assert_close(found["patches"], f.mean(2))


@pytest.mark.parametrize(("name", "shape"), [("small", (3, 16, 16)), ("mlp", (7,)), ("mlp", (1, 1, 9))])
def test_widths_and_empty_batches(name, shape):
    features = RunFeatures(method(name, shape), shape)
    with torch.no_grad():
        assert {key: f.shape[1] for key, f in features(torch.rand(2, *shape)).items()} == features.widths()
        empty = features(torch.rand(0, *shape))
    assert {key: tuple(f.shape) for key, f in empty.items()} == {key: (0, width) for key, width in features.widths().items()}
