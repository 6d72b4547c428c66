"""Each method on images against loops in float64: terms, gradients, teachers; planted errors; what its inputs are."""

import math

import pytest
import torch
from lightly.loss import DINOLoss
from tests.reference import image_methods as reference
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from vergence.data.config import ViewConfig
from vergence.learn.encoders.building import encoder
from vergence.learn.encoders.networks import mlp
from vergence.learn.methods import denoising_autoencoder, dino, i_jepa, masked_autoencoder, variational_autoencoder
from vergence.learn.methods.parts import block_masks, random_masks
from vergence.learn.views.images import ImageViews
from vergence.linear.solutions import reconstruction

WHOLE = ViewConfig(crop=(1.0, 1.0), flip=0.0, jitter_p=0.0, grayscale=0.0, blur=0.0)
TRANSFORMER = "timm:vit_tiny_patch16_224,patch_size=4,embed_dim=12,depth=2,num_heads=3"
FREE = f"{TRANSFORMER},class_token=False,global_pool=avg"


def network(name="small", shape=(1, 8, 8)):
    torch.manual_seed(1)
    return encoder(name, shape, torch.full(shape[:1], 0.5), torch.full(shape[:1], 0.3)).double()


def moved(method, *students):
    """Returns the method with students that differ from their teachers, which the checks read whatever an error does."""
    for p in (p for student in students for p in student.parameters()):
        p.data += 0.1 * torch.randn_like(p)
    method.teachers = (method.encoder, getattr(method, "teacher_head", None))
    return method


def same(values, expected, parameters):
    """Losses by name and the gradients of their sums are the same."""
    for name, value in values.items():
        assert torch.allclose(value, expected[name], rtol=1e-8), "loss"
    parameters = list(parameters)
    gradients = [torch.autograd.grad(sum(terms.values()), parameters) for terms in (values, expected)]
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-8) for a, b in zip(*gradients, strict=True)), "gradient"


def follows(teacher, student, step, momentum):
    """After `step`, the teacher has moved toward the student."""
    old = {name: p.clone() for name, p in teacher.named_parameters()}
    step()
    expected = reference.moved(old, dict(student.named_parameters()), momentum)
    assert all(torch.allclose(p, expected[name], atol=1e-15, rtol=0) for name, p in teacher.named_parameters()), "teacher"


def inputs(method, views=WHOLE, n=200, size=8, channels=1):
    x = torch.randint(256, (n, channels, size, size), dtype=torch.uint8)
    sampler = method.inputs(ImageViews(views, size))
    return x.double() / 255, *sampler.apply(x, sampler.draw(n, torch.Generator().manual_seed(0)))


def denoising(**options):
    return denoising_autoencoder.DenoisingAutoencoder(network(), (1, 8, 8), **options).double()


def check_denoising(method=None):
    method, x, item = method or denoising(), torch.rand(4, 1, 8, 8) + 0.1, torch.rand(4, 1, 8, 8)
    expected = reference.squared_error(method.decoder(method.encoder(x)), item)
    same(method((x, item), lambda z: z), {"reconstruction": expected}, method.parameters())


def variational(**options):
    return variational_autoencoder.VariationalAutoencoder(network(), (1, 8, 8), latent=3, **options).double()


def check_variational(beta=4.0):
    method, x, e = variational(beta=beta, deviation=0.2), torch.rand(4, 1, 8, 8), torch.randn(4, 3)
    mu, log_variance = method.head(method.encoder(x)).split(3, 1)
    z = torch.stack([m + torch.sqrt(torch.exp(lv)) * noise for m, lv, noise in zip(mu, log_variance, e, strict=True)])
    expected = {"reconstruction": reference.gaussian_nll(x, method.decoder(z), 0.2), "kl": beta * reference.kl(mu, log_variance)}
    same(method((x, e), lambda z: z), expected, method.parameters())


def masked(name=TRANSFORMER, **options):
    sizes = {"decoder_width": 8, "decoder_depth": 2, "decoder_heads": 2}
    return masked_autoencoder.MaskedAutoencoder(network(name, (3, 16, 16)), (3, 16, 16), **sizes, **options).double()


def masked_batch(n=3):
    return torch.rand(n, 3, 16, 16), *random_masks(n, 16, 0.75, torch.Generator().manual_seed(0))


def check_masked(name=TRANSFORMER, normalize=True):
    """The released code's form: all patches in their places, a mask on the error."""
    method, (x, keep, hidden) = masked(name, normalize_patches=normalize), masked_batch()
    standard, vit, predicted = method.encoder[0](x), method.encoder[1], []
    for image, index in zip(standard, keep, strict=True):
        tokens = reference.visible_tokens(vit, image, index)
        predicted.append(reference.full_decoder(method.decoder, tokens, index, (4, 4), vit.num_prefix_tokens))
    expected = reference.masked_error(standard, torch.stack(predicted), hidden, 4, normalize)
    parameters = (p for p in method.parameters() if p.requires_grad)
    same(method((x, keep, hidden), lambda z: z), {"reconstruction": expected}, parameters)


def predictions(method, head, batches):
    """Returns what a head predicts for each batch."""
    outputs, predict = [], head.forward
    head.forward = lambda *a: outputs.append(predict(*a)) or outputs[-1]
    for batch in batches:
        method(batch, lambda z: z)
    return outputs


def pixels(index, grid):
    """Returns a mask (B, 1, H, W) of the pixels of patches of 4 pixels."""
    cells = torch.zeros(len(index), grid * grid, dtype=torch.bool).scatter_(1, index, True).view(-1, 1, grid, grid)
    return cells.repeat_interleave(4, 2).repeat_interleave(4, 3)


def check_the_mask():
    """The encoder sees no masked pixel, and the error has no visible one."""
    method, (x, keep, hidden) = masked(), masked_batch()
    changed = torch.where(pixels(hidden, 4), torch.rand_like(x), x)
    y, again = predictions(method, method.decoder, [(x, keep, hidden), (changed, keep, hidden)])
    assert torch.equal(y, again), "a prediction depends on masked pixels"
    target = torch.randn(3, 16, 48)
    errors = [
        masked_autoencoder.masked_error(target.scatter(1, some[..., None].expand(-1, -1, 48), 7.0), y, hidden)
        for some in (keep[:, :0], keep, hidden[:, :1])
    ]
    assert torch.equal(errors[0], errors[1]), "the error depends on visible pixels"
    assert (errors[0] != errors[2]).all()


def jepa():
    sizes = {"predictor_width": 8, "predictor_depth": 1, "predictor_heads": 2, "min_context": 4}
    method = i_jepa.IJepa(network(FREE, (3, 24, 24)), (3, 24, 24), **sizes).double()
    return moved(method, method.student)


def jepa_batch(n=2):
    return torch.rand(n, 3, 24, 24), *block_masks(n, (6, 6), torch.Generator().manual_seed(0), targets=2)


def check_jepa(plant=lambda method: None):
    method = jepa()
    plant(method)
    teacher = method.teachers[0]
    for step in range(2):
        method.before_step(step / 2)
        x, context, targets = jepa_batch()
        networks = method.student[1], teacher[1], method.predictor
        expected = reference.block_prediction_error(*networks, method.student[0](x), context, targets)
        parameters = [*method.student.parameters(), *method.predictor.parameters()]
        same(method((x, context, targets), lambda z: z), {"prediction": expected}, parameters)
        follows(teacher, method.student, method.after_step, (0.996, 0.998)[step])


def distilled(**options):
    sizes = {"outputs": 6, "hidden": 8, "bottleneck": 5, "fixed_prototypes": 0.0}
    method = dino.Dino(network(), (1, 8, 8), **{**sizes, **options}).double()
    method.n_local = 2
    return moved(method, method.student, method.head)


def crops(n=4, large=2):
    return *torch.rand(large, n, 1, 8, 8), torch.rand(n, 1, 4, 4), torch.rand(n, 1, 4, 4)


def check_dino(plant=lambda method: None, large_crops=2):
    method, center = distilled(), torch.zeros(6)
    plant(method)
    network, head = method.teachers
    for step in range(2):
        method.before_step(step / 2)
        views = crops(large=large_crops)
        large, small = torch.cat(views[:-2]), torch.cat(views[-2:])
        with torch.no_grad():
            teacher = head(network(large)).view(large_crops, 4, -1)
        student = torch.cat([method.head(method.student(group)).view(-1, 4, 6) for group in (large, small)])
        parameters = [*method.student.parameters(), *method.head.parameters()]
        expected = reference.cross_entropy(teacher, student, center, 0.1, 0.04)
        same(method(views, lambda z: z), {"cross_entropy": expected}, parameters)
        center = reference.moved_center(center, teacher, 0.9)
        assert torch.allclose(method.loss.center.flatten(), center, atol=1e-12), "center"
        follows(network, method.student, method.after_step, 1 - 0.004 * (1 + (1.0, 0.0)[step]) / 2)  # cos(0), cos(pi / 2)


@pytest.mark.parametrize(
    ("check", "arguments"),
    [
        (check_denoising, ()), (check_variational, (1.0,)), (check_variational, (4.0,)),
        *((check_masked, (name, normalize)) for name in (TRANSFORMER, FREE) for normalize in (False, True)), (check_the_mask, ()),
        (check_jepa, ()), (check_dino, ()), (lambda: check_dino(large_crops=3), ()),
    ],
)  # fmt: skip
def test_terms_gradients_and_teachers_are_those_of_loops(check, arguments):
    check(*arguments)


nll, tokens = variational_autoencoder.negative_log_likelihood, i_jepa.seen
FUNCTIONS = {  # functions of a module that are wrong
    "mean for sum": (check_denoising, "reconstruction", lambda x, y: (x - y).square().flatten(1).mean(1)),
    "mean for sum of kl": (check_variational, "kl_to_prior", lambda m, lv: 0.5 * (m.square() + lv.exp() - 1 - lv).mean(1)),
    "variance for deviation": (check_variational, "negative_log_likelihood", lambda x, y, s: nll(x, y, s**0.5)),
    "visible in the error": (check_masked, "masked_error", lambda t, y, m: (t[:, : y.shape[1]] - y).square().mean((1, 2))),
    "not normalized": (check_masked, "normalized", lambda x: x),
    "everything seen by the mask": (check_the_mask, "seen", lambda vit, x, k: vit.forward_features(x)[:, : k.shape[1] + 1]),
    "no mask": (check_jepa, "seen", lambda vit, x, k=None: tokens(vit, x)[:, : 36 if k is None else k.shape[1]]),
    "a teacher that stays": (check_dino, "follow", lambda *a: None),
}
MODULES = {
    check_denoising: denoising_autoencoder,
    check_variational: variational_autoencoder,
    check_masked: masked_autoencoder,
    check_the_mask: masked_autoencoder,
    check_jepa: i_jepa,
    check_dino: dino,
}


@pytest.mark.parametrize("error", FUNCTIONS)
def test_planted_errors_are_caught(error, monkeypatch):
    check, name, wrong = FUNCTIONS[error]
    monkeypatch.setattr(MODULES[check], name, wrong)
    with pytest.raises(AssertionError):
        check()


def with_crops_swapped(method):
    forward = method.loss.forward
    method.loss.forward = lambda t, s: forward(t.flip(0), s)


SETTINGS = {  # methods that are changed after they were built, and the part of the check that fails
    "temperature": (check_dino, lambda m: setattr(m.loss, "teacher_temperature", 0.07), "loss"),
    "crops paired with themselves": (check_dino, with_crops_swapped, "loss"),
    "no center": (check_dino, lambda m: setattr(m.loss, "update_center", lambda out, gather: None), "center"),
    "no schedule": (check_dino, lambda m: setattr(m, "before_step", lambda progress: None), "teacher"),
    "a teacher that is the student": (check_jepa, lambda m: setattr(m, "encoder", m.student), "loss"),
}


@pytest.mark.parametrize("error", SETTINGS)
def test_planted_changes_are_caught(error):
    check, plant, part = SETTINGS[error]
    with pytest.raises(AssertionError, match=part):
        check(plant)


def test_the_linear_denoising_autoencoder_is_the_linear_theorys_reconstruction():
    torch.manual_seed(0)
    n, d, k = 400, 5, 2
    X = torch.randn(n, d) @ torch.randn(d, d)
    G = X.T @ X / n
    E, D, phi, _ = reconstruction(G, G + 0.3 * torch.eye(d))  # the covariance of the augmentation, whose sample is exact below
    root = (0.3 * d) ** 0.5 * torch.eye(d)
    views = torch.cat([X + sign * row for row in root for sign in (1, -1)])  # mean X and covariance 0.3 I
    linear = nn.Sequential(nn.Identity(), nn.Linear(d, k, bias=False))
    method = denoising_autoencoder.DenoisingAutoencoder(linear, (d,))
    assert [tuple(p.shape) for p in method.decoder.parameters()] == [tuple(p.shape) for p in mlp((k, 512, 512, d)).parameters()]
    method.decoder = nn.Linear(k, d, bias=False)
    method.encoder[1].weight.data, method.decoder.weight.data = E[:k].clone(), D[:, :k].clone()
    loss = method((views, X.repeat(2 * d, 1)), lambda z: z)["reconstruction"]
    assert torch.allclose(loss, G.trace() - phi[:k].square().sum())
    assert all(gradient.abs().max() < 1e-10 * loss for gradient in torch.autograd.grad(loss, list(method.parameters())))


def test_the_denoising_input_is_the_view_with_noise_and_the_target_the_item():
    x, noisy, item = inputs(denoising(noise=0.25))
    assert torch.allclose(item.double(), x, atol=1e-7)
    noise = noisy.double() - x
    assert abs(noise.mean()) < 4 * 0.25 / noise.numel() ** 0.5
    assert abs(noise.square().mean() / 0.25**2 - 1) < 4 * (2 / noise.numel()) ** 0.5
    pairs = noise.flatten(1) @ noise.flatten(1).T / noise[0].numel()
    assert (pairs - pairs.diag().diag()).abs().max() < 6 * 0.25**2 / noise[0].numel() ** 0.5  # each image has its own
    x, noisy, item = inputs(denoising(noise=0.0, mask=0.4))
    black = (noisy == 0).all(1)
    assert torch.allclose(noisy.double(), x * ~black[:, None], atol=1e-7)
    assert abs(black.double().mean() - 0.4) < 4 * (0.24 / black.numel()) ** 0.5 + (x == 0).double().mean()


def test_both_variational_terms_are_those_of_torch_distributions():
    x, mean = torch.rand(2, 5, 3, 4, 4)
    assert torch.allclose(nll(x, mean, 0.3), -Independent(Normal(mean, 0.3), 3).log_prob(x))
    mu, log_variance = torch.randn(2, 5, 7)
    q, p = (Independent(Normal(*parts), 1) for parts in ((mu, (0.5 * log_variance).exp()), (torch.zeros(7), 1.0)))
    assert torch.allclose(variational_autoencoder.kl_to_prior(mu, log_variance), kl_divergence(q, p))


def test_the_variational_loss_bounds_the_negative_log_likelihood():
    """With a linear decoder p(x) is Gaussian in closed form: the loss is above -log p(x), and equal for the exact posterior."""
    torch.manual_seed(0)
    W, s, x = torch.tensor([[1.0, 1.0], [1.0, 0.8], [0.9, 1.0], [0.2, 0.0]]), 0.5, torch.randn(1, 4)
    precision = torch.eye(2) + W.T @ W / s**2
    exact = torch.linalg.inv(precision)
    truth = -MultivariateNormal(torch.zeros(4), W @ W.T + s**2 * torch.eye(4)).log_prob(x)
    mu, n = exact @ W.T @ x[0] / s**2, 20_000
    for covariance in (exact, torch.diag(1 / precision.diag())):
        z = mu + torch.randn(n, 2) @ torch.linalg.cholesky(covariance).T
        terms = nll(x.expand(n, -1), z @ W.T, s)
        bound = terms.mean() + 0.5 * (mu @ mu + covariance.trace() - 2 - covariance.logdet())
        error = 4 * terms.std() / math.sqrt(n)
        assert abs(bound - truth) < error if covariance is exact else bound > truth + error


def test_noise_and_masks_are_sampled_for_each_item():
    e = inputs(variational(), n=500)[2]
    assert e.shape == (500, 3) and abs(e.mean()) < 4 / 1500**0.5 and abs(e.var() - 1) < 4 * (2 / 1500) ** 0.5
    _, _, keep, hidden = inputs(masked(), n=5, size=16, channels=3)
    assert keep.shape == (5, 4) and hidden.shape == (5, 12) and len({tuple(row.sort().values.tolist()) for row in keep}) > 1
    _, x, context, targets = inputs(jepa(), n=3, size=24, channels=3)
    assert x.shape == (3, 3, 24, 24) and targets.shape[:2] == (3, 4) and context.shape[0] == 3


def test_the_prediction_of_i_jepa_sees_the_context_only():
    method, (x, *blocks) = jepa(), jepa_batch()
    context = pixels(blocks[0], 6)
    batches = [(image, *blocks) for image in (x, x.where(context, torch.rand_like(x)), x.where(~context, torch.rand_like(x)))]
    y, hidden_changed, context_changed = predictions(method, method.predictor, batches)
    assert torch.equal(y, hidden_changed) and not torch.allclose(y, context_changed)


def test_prototypes_stay_where_they_are_in_the_first_steps():
    method, moves = distilled(fixed_prototypes=0.5), []
    for progress in (0.0, 0.49, 0.5):
        method.before_step(progress)
        method.zero_grad()
        method(crops(), lambda z: z)["cross_entropy"].backward()
        moves.append(bool(method.head.prototypes.weight.grad.any()))
        assert method.frozen() == (() if moves[-1] else (method.head.prototypes.weight,))
        assert method.head.layers[0].weight.grad.any()
    assert moves == [False, False, True]


def test_crops_of_dino_have_the_papers_sizes_and_strengths():
    sampler = distilled().inputs(ImageViews(ViewConfig(crop=(0.4, 1.0), local_views=3), 8))
    draws = sampler.draw(2000, torch.Generator().manual_seed(0))
    views = sampler.apply(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), tuple({k: v[:4] for k, v in d.items()} for d in draws))
    assert [view.shape[2] for view in views] == [8, 8, 4, 4, 4]
    areas = [(draw["area"].min().item(), draw["area"].max().item()) for draw in draws[:-1]]
    assert all(0.4 <= low < 0.41 and 0.99 < high <= 1 for low, high in areas[:2])
    assert all(0.05 <= low < 0.06 and 0.39 < high <= 0.4 for low, high in areas[2:])
    blurred = [draw["blur"].double().mean().item() for draw in draws[:-1]]
    assert blurred == pytest.approx([1.0, 0.1, 0.5, 0.5, 0.5], abs=0.05) and blurred[0] == 1
    assert [draw["solarize"].double().mean().item() for draw in draws[:-1]] == pytest.approx([0, 0.2, 0, 0, 0], abs=0.04)
    plain = distilled(asymmetric=False).inputs(ImageViews(ViewConfig(blur=0.0), 8))
    assert len(plain.kinds) == 2 and all(kind.config.blur == 0 for kind in plain.kinds)


def test_the_loss_of_dino_and_its_center_are_lightlys():
    ours, theirs = dino.CenteredCrossEntropy(6, 0.1, 0.04, 0.9), DINOLoss(6)
    for _ in range(3):
        targets, outputs = torch.randn(2, 5, 6), torch.randn(4, 5, 6, requires_grad=True)
        values = ours(targets, outputs), theirs(list(targets), list(outputs))
        ours.update_center(targets, lambda x: x)
        gradients = [torch.autograd.grad(value, outputs)[0] for value in values]
        assert torch.allclose(*values, atol=1e-12) and torch.allclose(*gradients, atol=1e-12)
        assert torch.allclose(ours.center, theirs.center, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: ours(targets, x), outputs)


@pytest.mark.float32
def test_the_loss_of_dino_is_that_of_float32_under_autocast():
    method, seen = distilled().float(), []
    method.loss.register_forward_pre_hook(
        lambda module, args: seen.append((torch.is_autocast_enabled("cpu"), {x.dtype for part in args for x in part}))
    )
    with torch.autocast("cpu", torch.bfloat16):
        value = method(tuple(view.float() for view in crops()), lambda z: z)["cross_entropy"]
    assert seen == [(False, {torch.float32})] and value.dtype == torch.float32
