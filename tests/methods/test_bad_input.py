"""What methods refuse, one table: by type and the word that matters."""

import pytest
import torch
from tests.methods.test_contract import SMALL, VIT
from torch import nn

from vergence import methods
from vergence.encoders.networks import encoder
from vergence.methods.paired import PairedMethod
from vergence.methods.parts import masks
from vergence.objectives.vje import VJE

BAD = {
    "denoising_autoencoder": [{"noise": -1}, {"mask": 1.0}],
    "dino": [{"teacher_temperature": 0.0}, {"local_crops": -1}, {"local_crop": 0.3}, {"momentum": 2.0}],
    "i_jepa": [
        *({"target_scale": (0.5, 0.2)}, {"target_aspect": (0.0, 1.0)}, {"targets": 0}, {"min_context": 0}),
        *({"context_scale": (0.9,)}, {"target_aspect": 1}, {"momentum": -1.0}),
    ],
    "masked_autoencoder": [{"mask_ratio": 0.99}, {"mask_ratio": 1.5}, {"decoder_width": 6}],
    "variational_autoencoder": [{"beta": -1}, {"deviation": 0.0}],
}


def built(name, net=VIT, shape=(3, 16, 16), **options):
    network = encoder(net if name in ("masked_autoencoder", "i_jepa") else "small", shape, torch.zeros(3), torch.ones(3))
    return methods.get(name)(network, shape, **{**SMALL.get(name, {}), **options})


@pytest.mark.parametrize(("name", "options"), [(name, options) for name in BAD for options in BAD[name]], ids=str)
def test_settings_out_of_range_are_named(name, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}"):
        built(name, **options)


@pytest.mark.parametrize(
    ("options", "word"),
    [({"teacher": 1.0}, "teacher"), ({"schedule": "linear"}, "schedule"), ({"target_projector": nn.Identity()}, "encoder")],
)
def test_settings_of_paired_methods_are_named(options, word):
    with pytest.raises(ValueError, match=word):
        PairedMethod(nn.Linear(5, 8), VJE(8), **options)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: built("i_jepa", VIT.replace(",class_token=False,global_pool=avg", "")), "without class token"),
        (lambda: built("i_jepa", min_context=16), "leave a context of 16 patches"),
        (lambda: built("i_jepa", VIT.replace("patch_size=4", "patch_size=16")), "at least one patch"),
        (lambda: built("masked_autoencoder", VIT.replace("patch_size=4", "patch_size=16")), "at least 2 patches"),
        (lambda: built("dino").inputs(nn.Identity()), "expected views of images"),
        (lambda: masks.visible(64, 0.99), "leaves 0"),
        (lambda: masks.visible(1, 0.5), "leaves 0"),
    ],
)
def test_what_cannot_be_trained_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
