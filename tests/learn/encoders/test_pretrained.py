"""Weights from files and from timm's cache: they fit or are refused in one line, and no file runs code."""

import itertools
import re
import time
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from tests import factories
from tests.refusals import refuses
from torch import nn

from vergence.images import timm_models
from vergence.images.timm_models import Input
from vergence.learn.encoders import building, networks, pretrained
from vergence.learn.encoders.config import as_encoder

pytestmark = pytest.mark.float32


def test_the_expected_input_is_the_configurations():
    found = building.expected_input(as_encoder("tests.factories:tiny"))
    assert found == Input(12, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    for name in ("tests.factories:plain", "mlp"):
        assert building.expected_input(as_encoder(name)) is None
    assert building.expected_input(as_encoder("resnet50")) == Input()


def test_a_configuration_that_cannot_be_read_is_named():
    refuses(r"tests.factories:odd.*correct its default_cfg", building.expected_input, as_encoder("tests.factories:odd"))


def test_the_expected_input_of_timm_is_that_of_the_tag():
    timm = pytest.importorskip("timm", reason="the extra 'timm' is not installed")
    found = building.expected_input(as_encoder("timm:vit_tiny_patch16_224.augreg_in21k"))
    configuration = timm.get_pretrained_cfg("vit_tiny_patch16_224.augreg_in21k")
    assert found == Input(224, tuple(configuration.mean), tuple(configuration.std)) and found.mean == (0.5,) * 3


def test_a_network_of_three_channels_takes_gray_images_as_equal_channels():
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])
    net = building.encoder("tests.factories:tiny", (1, 12, 12), mean, std).eval()
    x = torch.randint(0, 256, (5, 1, 12, 12), dtype=torch.uint8)
    assert torch.equal(net(x), net(x.expand(-1, 3, -1, -1)))
    by_hand = torch.stack([(x[:, 0] / 255 - m) / s for m, s in zip(mean, std, strict=True)], 1)
    assert torch.allclose(net[0](x), by_hand, atol=1e-6)


def test_identity_returns_vectors_as_they_are_and_has_no_weights():
    net = building.encoder("identity", (6,), torch.full((6,), 3.0), torch.full((6,), 2.0))
    x = torch.randn(4, 6)
    assert torch.equal(net(x), x) and list(net.parameters()) == [] and networks.width(net, (6,)) == 6


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("tests.factories:nothing", (3, 12, 12), "cannot import encoder 'tests.factories:nothing'"),
        ("no_such_package:x", (3, 12, 12), "expected 'package.module:factory': install the package"),
        ("tests.no_such:x", (3, 12, 12), "put its folder on PYTHONPATH$"),
        ("tests.factories:number", (3, 12, 12), "torch.nn.Module, found int"),
        ("tests.factories:needs", (3, 12, 12), "failed when it was called without arguments"),
        ("tests.factories:on_vectors", (3, 12, 12), "does not accept items.*try another `size`"),
        ("tests.factories:plain", (1, 12, 12), r"channels with `input_mean=\(0.5,0.5,0.5\)` and `input_std="),
        ("tests.factories:plain", (4, 12, 12), "give images of 3 channels, or choose another encoder"),
        ("identity", (3, 12, 12), "expected vectors for encoder 'identity'"),
        ("resnet81", (3, 32, 32), "did you mean 'resnet18'"),
        ("resnet18-cifra", (3, 32, 32), "expected an encoder among small, .*, found 'resnet18-cifra'"),
        ("small", (12,), "use `encoder='mlp'`"),
    ],
)
def test_encoders_that_cannot_be_built(name, shape, words):
    refuses(words, building.encoder, name, shape, torch.zeros(shape[0]), torch.ones(shape[0]))


WRAPPED = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"state_dict": state, "epoch": 3},
    "module": lambda state: {"model": {f"module.{name}": value for name, value in state.items()}},
    "ema": lambda state: {"state_dict": {"first.bias": torch.zeros(6)}, "state_dict_ema": state},
}


@pytest.mark.parametrize("how", WRAPPED)
def test_weights_of_a_pytorch_file_are_read_whatever_they_are_wrapped_in(tmp_path, how):
    torch.save(WRAPPED[how](factories.state()), tmp_path / "w.pth")
    found = pretrained.read_weights(tmp_path / "w.pth")
    net = factories.Tiny()
    assert pretrained.load_weights(net, found, "w.pth") == ()
    assert all(torch.equal(value, factories.state()[name]) for name, value in net.state_dict().items())


def test_weights_of_a_safetensors_file_in_half_precision_are_read(tmp_path):
    state = {name: value.half() if value.is_floating_point() else value for name, value in factories.state().items()}
    save_file(state, tmp_path / "w.safetensors")
    net = factories.Tiny()
    pretrained.load_weights(net, pretrained.read_weights(tmp_path / "w.safetensors"), "w")
    assert net.first.weight.dtype == torch.float32
    assert torch.equal(net.first.weight, factories.state()["first.weight"].half().float())


class Payload:
    """What a stranger's file does where it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("ending", ["pth", "pt", "bin", "safetensors", "ckpt", "tar"])
def test_no_file_runs_code(tmp_path, ending):
    marker, file = tmp_path / "ran", tmp_path / f"w.{ending}"
    torch.save({"state_dict": {**factories.state(), "x": Payload(marker)}}, file)
    with pytest.raises(ValueError, match=r"w\.") as error:
        pretrained.read_weights(file)
    assert not marker.exists() and "\n" not in str(error.value) and "weights_only" not in str(error.value)


BROKEN = {
    "text": lambda file: file.write_text("not weights"),
    "empty": lambda file: file.write_bytes(b""),
    "short": lambda file: file.write_bytes(b"X\x02\x00"),  # a text whose length is missing
    "half": lambda file: (torch.save(factories.state(), file), file.write_bytes(file.read_bytes()[:2000])),
    "list": lambda file: torch.save([torch.zeros(3)], file),
    "numbers": lambda file: torch.save({"a": 3}, file),
    "nothing": lambda file: torch.save({}, file),
    "nan": lambda file: torch.save({**factories.state(), "first.bias": torch.full((6,), torch.nan)}, file),
    "script": lambda file: torch.jit.script(nn.Linear(2, 2)).save(str(file)),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("what", BROKEN)
def test_files_that_hold_no_weights_are_refused_in_one_line(tmp_path, what):
    file = tmp_path / "w.pth"
    BROKEN[what](file)
    with pytest.raises(ValueError, match=r"w\.pth") as error:
        pretrained.read_weights(file)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
    for path in (tmp_path, tmp_path / "none.pth"):
        refuses("no such file", pretrained.read_weights, path)


def test_weights_that_do_not_fit_are_named_and_leave_the_network_alone():
    net, state = factories.Tiny(), factories.state()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state["first.weight"] = torch.zeros(6, 1, 3, 3)
    state["extra.weight"] = torch.zeros(1)
    for name in ("norm.weight", "norm.bias", "second.weight", "second.bias"):
        del state[name]
    words = "4 missing: norm.weight, norm.bias, second.weight, ...; 1 of another shape: first.weight (6, 1, 3, 3) instead of "
    words += "(6, 3, 3, 3); 1 unexpected: extra.weight; give the encoder that the file was made for"
    words = re.escape(f"expected the encoder's weights in w.pth, found {words}") + "$"
    refuses(words, pretrained.load_weights, net, state, "w.pth")
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_classifier_is_left_out_and_step_counters_may_be_missing():
    state = {**factories.state(), "fc.weight": torch.zeros(10, 8), "fc.bias": torch.zeros(10)}
    del state["norm.num_batches_tracked"]
    assert pretrained.load_weights(factories.Tiny(), state, "w") == ("fc.weight", "fc.bias")


def test_a_runs_model_in_the_place_of_weights_leads_to_init():
    state = {f"encoder.1.{k}": v for k, v in factories.state().items()}
    refuses("`init=RUN`", pretrained.load_weights, factories.Tiny(), state, "w")


def test_weights_of_torchvision_fit_the_resnet(tmp_path):
    whole = torchvision.models.resnet18(weights=None)
    torch.save(whole.state_dict(), tmp_path / "resnet18.pth")
    net = networks.resnet("resnet18", 3, "imagenet").eval()
    left = pretrained.load_weights(net, pretrained.read_weights(tmp_path / "resnet18.pth"), "resnet18.pth")
    assert left == ("fc.weight", "fc.bias")
    x = torch.randn(2, 3, 64, 64)
    assert torch.allclose(whole.eval().fc(net(x)), whole(x), atol=1e-5)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the Hugging Face Hub, and a server that does not answer."""
    pytest.importorskip("timm", reason="the extra 'timm' is not installed")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


def fill(cache, name):
    """Puts weights of timm's model into the cache, laid out as a download leaves them; returns the model."""
    import timm

    net = timm.create_model(name, pretrained=False)
    with torch.no_grad():
        for parameter in itertools.chain(net.parameters(), (b for b in net.buffers() if b.is_floating_point())):
            parameter.copy_(torch.rand_like(parameter))
    folder = cache / f"models--{timm.get_pretrained_cfg(name).hf_hub_id.replace('/', '--')}"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    save_file(net.state_dict(), folder / "snapshots" / "abc" / "model.safetensors")
    return net


def test_weights_in_timms_cache_are_used_without_network(cache):
    net = fill(cache, "resnet10t")
    file = timm_models.timm_file("resnet10t")
    assert file.is_relative_to(cache)
    found = timm_models.timm_model("resnet10t", 3, 64, file).state_dict()
    wanted = net.state_dict()
    assert set(wanted) - set(found) == {"fc.weight", "fc.bias"} and set(found) < set(wanted)
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())


def test_a_pretrained_name_without_network_is_refused_at_once(cache):
    started = time.monotonic()
    refuses("not in its cache", timm_models.timm_file, "resnet10t")
    assert time.monotonic() - started < 15
