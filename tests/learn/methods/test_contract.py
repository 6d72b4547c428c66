"""What holds of every method on images of the register: a step, its randomness, its state, its options, what it refuses."""

import functools
import inspect

import pytest
import torch
from tests import options as registered
from torch import nn

from vergence.data.config import ViewConfig
from vergence.learn import methods
from vergence.learn.encoders.building import encoder
from vergence.learn.methods.parts import block_masks
from vergence.learn.training import recipes
from vergence.learn.training.config import MOST_OPTIONS
from vergence.learn.views.images import ImageViews

VIT = "timm:vit_tiny_patch16_224,patch_size=4,embed_dim=12,depth=1,num_heads=3,class_token=False,global_pool=avg"
TRANSFORMER = ("masked_autoencoder", "i_jepa")
SHAPE = (3, 16, 16)
SMALL = {
    "masked_autoencoder": {"decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2},
    "i_jepa": {"predictor_width": 8, "predictor_depth": 1, "predictor_heads": 2, "min_context": 2},
    "dino": {"outputs": 8, "hidden": 8, "bottleneck": 4, "fixed_prototypes": 0.0},
}
OTHER = {  # another value than that of the small settings
    "denoising_autoencoder": {"noise": 0.5, "mask": 0.5},
    "dino": {
        **{"outputs": 6, "hidden": 6, "bottleneck": 3, "batch_norm": True, "asymmetric": False},
        **{"temperature": 0.2, "teacher_temperature": 0.08},
        **{"center_momentum": 0.5, "momentum": 0.5, "fixed_prototypes": 1.0},
    },
    "i_jepa": {
        **{"predictor_width": 12, "predictor_depth": 2, "predictor_heads": 4, "targets": 2, "target_scale": (0.3, 0.4)},
        **{"target_aspect": (2.0, 2.5), "context_scale": (0.5, 0.6), "min_context": 9, "momentum": 0.5},
    },
    "masked_autoencoder": {
        **{"mask_ratio": 0.5, "decoder_width": 12, "decoder_depth": 2, "decoder_heads": 4, "normalize_patches": True}
    },
    "variational_autoencoder": {"latent": 6, "beta": 2.0, "deviation": 0.3},
}
EVERY = pytest.mark.parametrize("name", methods.names())


def built(name, net=None, shape=SHAPE, **options):
    torch.manual_seed(0)
    net = net or (VIT if name in TRANSFORMER else "small")
    network = encoder(net, shape, torch.full(shape[:1], 0.5), torch.full(shape[:1], 0.3))
    return methods.get(name)(network, shape, **{**SMALL.get(name, {}), **options}).double()


def step(method, seed=0, progress=0.5):
    """Returns the views and the terms of a step on 4 images."""
    x = torch.randint(256, (4, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    inputs = method.inputs(ImageViews(ViewConfig(local_views=int(method.multi_crop)), SHAPE[1]))
    views = inputs.apply(x, inputs.draw(4, torch.Generator().manual_seed(seed)))
    method.before_step(progress)
    views = tuple(v.double() if v.is_floating_point() else v for v in views)
    return views, method(views, lambda z: z)


def descend(method, terms):
    """Takes a step of gradient descent with what is trained."""
    sum(terms.values()).backward()
    with torch.no_grad():
        for p in set(method.parameters()) - set(method.frozen()):
            p -= 0.01 * (p.grad if p.grad is not None else 0)
    method.after_step()


@EVERY
def test_a_step_gives_scalar_terms_with_gradient_to_all_that_is_trained(name):
    method = built(name)
    terms = step(method)[1]
    assert terms and all(term.shape == () and term.isfinite() for term in terms.values())
    sum(terms.values()).backward()
    missing = [key for key, p in method.named_parameters() if p.requires_grad and p.grad is None]
    assert missing == [], "several processes wait for every gradient"
    moved = {key.partition(".")[0] for key, p in method.named_parameters() if p.requires_grad}
    assert moved == {"dino": {"student", "head"}, "i_jepa": {"student", "predictor"},
                     "variational_autoencoder": {"encoder", "head", "decoder"}}.get(name, {"encoder", "decoder"})  # fmt: skip
    method.after_step()
    z = method.embeddings()
    assert z.shape == (4, method.encoder(torch.zeros(1, *SHAPE)).shape[1]) and not z.requires_grad


@EVERY
def test_a_step_is_a_function_of_its_random_numbers_and_of_its_state_alone(name):
    method, other = built(name), built(name)
    first, again, another = (step(built(name), seed)[1] for seed in (0, 0, 1))
    assert all(torch.equal(first[term], again[term]) for term in first)
    assert any(not torch.equal(first[term], another[term]) for term in first)
    descend(method, step(method)[1])
    other.load_state_dict(method.state_dict())
    a, b = step(method, 1)[1], step(other, 1)[1]
    assert all(torch.equal(a[term], b[term]) for term in a)


@EVERY
def test_methods_are_documented_have_a_recipe_and_bounded_sizes(name):
    kind = methods.get(name)
    assert "arXiv" in inspect.getmodule(kind).__doc__ or "ICML" in inspect.getmodule(kind).__doc__
    config = recipes.get(f"{name}_small", "digits")
    assert config.model.method == name and config.model.objective == "none"
    options = {key: p for key, p in inspect.signature(kind).parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert set(config.model.options) <= set(options) and all(f"        {key}: " in kind.__doc__ for key in options)
    assert [key for key, p in options.items() if p.annotation is int and key not in (*MOST_OPTIONS, "min_context")] == []


@functools.cache
def trace(name, **settings):
    """Returns the inputs, terms and state of two steps."""
    method, tensors = built(name, **settings), []
    for seed in range(2):
        views, terms = step(method, seed, seed / 2)
        descend(method, terms)
        tensors += [*views, *(term.detach() for term in terms.values()), *(v.clone() for v in method.state_dict().values())]
    return tensors


@pytest.mark.parametrize(("name", "option"), registered.of_register(methods))
def test_no_option_is_ignored(name, option):
    assert registered.differ(trace(name), trace(name, **{option: OTHER[name][option]}))


BAD = {
    "denoising_autoencoder": [{"noise": -1}, {"mask": 1.0}],
    "dino": [{"teacher_temperature": 0.0}, {"momentum": 2.0}],
    "i_jepa": [{"target_scale": (0.5, 0.2)}, {"targets": 0}, {"context_scale": (0.9,)}, {"target_aspect": 1}, {"momentum": -1.0}],
    "masked_autoencoder": [{"mask_ratio": 0.99}, {"mask_ratio": 1.5}, {"decoder_width": 6}],
    "variational_autoencoder": [{"beta": -1}, {"deviation": 0.0}],
}
CLASS_TOKEN, DYNAMIC = VIT.replace(",class_token=False,global_pool=avg", ""), f"{VIT},dynamic_img_size=True"
REFUSED = {
    **{f"{name} {bad}": (lambda n=name, o=bad: built(n, **o), next(iter(bad))) for name in BAD for bad in BAD[name]},
    "unknown": (lambda: methods.get("dion"), "did you mean 'dino'"),
    "class token": (lambda: built("i_jepa", CLASS_TOKEN), "class token"),
    "no context left": (lambda: block_masks(1, (4, 4), torch.Generator(), least=16), "context of 16 patches"),
    "one patch": (lambda: built("i_jepa", VIT.replace("patch_size=4", "patch_size=16")), "one patch"),
    "one patch to mask": (lambda: built("masked_autoencoder", VIT.replace("patch_size=4", "patch_size=16")), "2 patches"),
    "numbers that are not normalized": (
        lambda: built("masked_autoencoder", VIT.replace("patch_size=4", "patch_size=1"), (1, 4, 4), normalize_patches=True),
        "2 numbers",
    ),
    "no images": (lambda: built("dino").inputs(nn.Identity()), "views of images"),
    "no transformer": (lambda: built("i_jepa", "small"), "vision transformer"),
    "patches that do not divide": (lambda: built("masked_autoencoder", shape=(3, 18, 18)), "18 x 18"),
    "crops of a fixed size": (lambda: small_crops(VIT), "dynamic_img_size"),
    "crops larger than the image": (lambda: small_crops("small", local_size=99), "local_size from 2 to the images' 16 pixels"),
    **{
        f"three views of {name}": (lambda n=name: built(n).require_views(ViewConfig(n_views=3), SHAPE), "one view of each image")
        for name in methods.names()
        if name != "dino"
    },
}


def small_crops(net, **settings):
    built("dino", net).require_views(ViewConfig(local_views=1, **settings), SHAPE)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_is_refused(case):
    call, word = REFUSED[case]
    with pytest.raises(ValueError, match=word):
        call()


def test_a_transformer_takes_small_crops_of_dynamic_size():
    small_crops(DYNAMIC, local_size=8)
    assert step(built("dino", DYNAMIC))[1]["cross_entropy"].isfinite()
