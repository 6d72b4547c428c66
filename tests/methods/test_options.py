"""Every option of every method on images changes what is computed: its inputs, its terms, or its state after steps."""

import pytest
import torch
from tests import options
from tests.methods.test_contract import SHAPE, SMALL, VIT

from vergence import methods
from vergence.data.config import ViewConfig
from vergence.data.views import ImageViews
from vergence.encoders.networks import encoder

STEPS = 2
OTHER = {  # another value than that of the small settings
    "denoising_autoencoder": {"noise": 0.5, "mask": 0.5},
    "dino": {
        **{"outputs": 6, "hidden": 6, "bottleneck": 3, "batch_norm": True, "local_crops": 2, "local_size": 8},
        **{"local_crop": (0.3, 0.9), "asymmetric": False, "temperature": 0.2, "teacher_temperature": 0.08},
        **{"center_momentum": 0.5, "momentum": 0.5, "fixed_prototypes": 1.0},
    },
    "i_jepa": {
        **{"predictor_width": 12, "predictor_depth": 2, "predictor_heads": 4, "targets": 2, "target_scale": (0.3, 0.4)},
        **{"target_aspect": (2.0, 2.5), "context_scale": (0.5, 0.6), "min_context": 24, "momentum": 0.5},
    },
    "masked_autoencoder": {
        **{"mask_ratio": 0.5, "decoder_width": 12, "decoder_depth": 2, "decoder_heads": 4, "normalize_patches": True},
    },
    "variational_autoencoder": {"latent": 6, "beta": 2.0, "deviation": 0.3},
}


def trace(name, settings):
    """Returns the inputs, terms and state of some steps."""
    torch.manual_seed(0)
    net = encoder(VIT if name in ("masked_autoencoder", "i_jepa") else "small", SHAPE, torch.full((3,), 0.5), torch.ones(3))
    method = methods.get(name)(net, SHAPE, **{**SMALL.get(name, {}), **settings})
    x = torch.randint(256, (4, *SHAPE), dtype=torch.uint8)
    found = []
    for seed in range(STEPS):
        inputs = method.inputs(ImageViews(ViewConfig(), SHAPE[1]))
        views = inputs.apply(x, inputs.draw(4, torch.Generator().manual_seed(seed)))
        method.before_step(seed / STEPS)
        torch.manual_seed(seed)
        terms = method(tuple(views), lambda z: z)
        sum(terms.values()).backward()
        with torch.no_grad():
            for p in set(method.parameters()) - set(method.frozen()):
                p -= 0.01 * (p.grad if p.grad is not None else 0)
        method.after_step()
        found += [*views, *(term.detach() for term in terms.values()), *(v.clone() for v in method.state_dict().values())]
    return found


@pytest.mark.parametrize(("name", "option"), options.of_register(methods))
def test_no_option_is_ignored(name, option):
    one, another = trace(name, {}), trace(name, {option: OTHER[name][option]})
    assert options.differ(one, another)
