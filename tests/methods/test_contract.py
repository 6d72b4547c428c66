"""What holds of every method on images, whatever it is: found by itself when a file is added to the folder."""

import inspect

import pytest
import torch

from vergence import methods
from vergence.data.config import ViewConfig
from vergence.data.views import ImageViews
from vergence.encoders.networks import encoder
from vergence.objectives.core import DensityObjective
from vergence.training import recipes
from vergence.training.config import MOST_OPTIONS

VIT = "timm:vit_tiny_patch16_224,patch_size=4,embed_dim=12,depth=1,num_heads=3,class_token=False,global_pool=avg"
SMALL = {
    "masked_autoencoder": {"decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2},
    "i_jepa": {"predictor_width": 8, "predictor_depth": 1, "predictor_heads": 2, "min_context": 2},
    "dino": {"outputs": 8, "hidden": 8, "bottleneck": 4, "local_crops": 1, "fixed_prototypes": 0.0},
}
SHAPE = (3, 24, 24)


def built(name):
    torch.manual_seed(0)
    net = encoder(
        VIT if name in ("masked_autoencoder", "i_jepa") else "small", SHAPE, torch.full((3,), 0.5), torch.full((3,), 0.3)
    )
    return methods.get(name)(net.double(), SHAPE, **SMALL.get(name, {})).double()


def step(method, seed=0):
    """Returns the terms of a step on 4 images."""
    x = torch.randint(256, (4, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    inputs = method.inputs(ImageViews(ViewConfig(), SHAPE[1]))
    views = inputs.apply(x, inputs.draw(4, torch.Generator().manual_seed(seed)))
    method.before_step(0.5)
    return method(tuple(v.double() if v.is_floating_point() else v for v in views), lambda z: z)


@pytest.mark.parametrize("name", methods.names())
def test_a_step_gives_scalar_terms_with_gradient_to_all_that_is_trained(name):
    method = built(name)
    terms = step(method)
    assert terms and all(term.shape == () and term.isfinite() for term in terms.values())
    sum(terms.values()).backward()
    missing = [key for key, p in method.named_parameters() if p.requires_grad and p.grad is None]
    assert missing == [], "several processes wait for every gradient"
    assert any(p.requires_grad for p in method.parameters())
    method.after_step()
    z = method.embeddings()
    assert z.shape == (4, method.encoder(torch.zeros(1, *SHAPE)).shape[1]) and not z.requires_grad


@pytest.mark.parametrize("name", methods.names())
def test_a_step_is_a_function_of_its_random_numbers_alone(name):
    first, again, other = (step(built(name), seed) for seed in (0, 0, 1))
    assert all(torch.equal(first[term], again[term]) for term in first)
    assert any(not torch.equal(first[term], other[term]) for term in first)


@pytest.mark.parametrize("name", methods.names())
def test_the_state_is_tensors_and_restores_the_step(name):
    method, other = built(name), built(name)
    sum(step(method).values()).backward()
    with torch.no_grad():
        for p in method.parameters():
            p -= 0.01 * (p.grad if p.grad is not None else 0)
    method.after_step()
    other.load_state_dict(method.state_dict())
    a, b = step(method, 1), step(other, 1)
    assert all(torch.equal(a[term], b[term]) for term in a)


@pytest.mark.parametrize("name", methods.names())
def test_methods_are_documented_have_a_recipe_and_bounded_sizes(name):
    kind = methods.get(name)
    assert "arXiv" in inspect.getmodule(kind).__doc__ or "ICML" in inspect.getmodule(kind).__doc__
    config = recipes.get(recipes.of_method(name), "digits")
    assert config.model.method == name and config.model.objective == "none"
    options = {key: p for key, p in inspect.signature(kind).parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert set(config.model.options) <= set(options) and all(f"        {key}: " in kind.__doc__ for key in options)
    unbounded = [key for key, p in options.items() if p.annotation is int and key not in (*MOST_OPTIONS, "min_context")]
    assert unbounded == []
    method = built(name)
    assert method.objective is None and not isinstance(method.objective, DensityObjective)


def test_unknown_methods_are_refused():
    with pytest.raises(ValueError, match=r"expected a method among .*dino.*found 'dion'; did you mean 'dino'"):
        methods.get("dion")
