import pytest
import torch
from tests.reference import image_methods as reference

from vergence.data.config import ViewConfig
from vergence.data.views import ImageViews
from vergence.encoders.networks import encoder
from vergence.methods import i_jepa as module
from vergence.methods.i_jepa import IJepa
from vergence.methods.parts.masks import block_masks

VIT = "timm:vit_tiny_patch16_224,patch_size=4,embed_dim=12,depth=2,num_heads=3"
FREE = f"{VIT},class_token=False,global_pool=avg"


def built(name=FREE, **options):
    torch.manual_seed(1)
    net = encoder(name, (3, 24, 24), torch.full((3,), 0.5), torch.full((3,), 0.3)).double()
    method = IJepa(
        net, (3, 24, 24), predictor_width=8, predictor_depth=1, predictor_heads=2, **{"min_context": 4, **options}
    ).double()
    for p in method.student.parameters():
        p.data += 0.1 * torch.randn_like(p)  # unlike the teacher
    method.kept = (method.encoder,)  # which the check reads, whatever an error puts in its place
    return method


def batch(n=2):
    return torch.rand(n, 3, 24, 24), *block_masks(n, (6, 6), torch.Generator().manual_seed(0), targets=2)


def check(method):
    """Loss, gradient and teacher are those of loops, for two steps of the schedule."""
    for step in range(2):
        method.before_step(step / 2)
        x, context, targets = batch()
        found = method((x, context, targets), lambda z: z)["prediction"]
        teacher = method.kept[0]
        networks = method.student[1], teacher[1], method.predictor
        expected = reference.block_prediction_error(*networks, method.student[0](x), context, targets)
        assert torch.allclose(found, expected, rtol=1e-10), "loss"
        parameters = [*method.student.parameters(), *method.predictor.parameters()]
        gradients = [torch.autograd.grad(loss, parameters) for loss in (found, expected)]
        for a, b in zip(*gradients, strict=True):
            assert torch.allclose(a, b, rtol=1e-8, atol=1e-10), "gradient"
        old, student = {k: p.clone() for k, p in teacher.named_parameters()}, dict(method.student.named_parameters())
        method.after_step()
        moved = reference.moved(old, student, (0.996, 0.998)[step])
        assert all(torch.allclose(p, moved[k], atol=1e-15, rtol=0) for k, p in teacher.named_parameters()), "teacher"


def test_loss_gradient_and_teacher_are_those_of_loops_step_by_step():
    check(built())


WRONG = {
    "no mask": ("seen", lambda vit, x, keep=None: real_seen(vit, x)[:, : 36 if keep is None else keep.shape[1]], "loss"),
    "sum for mean": ("token_error", lambda u, v: module.F.smooth_l1_loss(u, v, reduction="none").sum((1, 2, 3)), "loss"),
    "square": ("token_error", lambda u, v: (u - v).square().mean((1, 2, 3)), "loss"),
    "no teacher's momentum": ("follow", lambda *a: None, "teacher"),
    "cosine schedule": ("linear", lambda a, b, p: a if p == 0 else 0.99, "teacher"),
}
real_seen = module.seen


@pytest.mark.parametrize("name", WRONG)
def test_planted_errors_are_caught(monkeypatch, name):
    attribute, wrong, words = WRONG[name]
    monkeypatch.setattr(module, attribute, wrong)
    with pytest.raises(AssertionError, match=words):
        check(built())


def test_a_teacher_that_is_the_student_is_caught():
    method = built()
    method.encoder = method.student
    with pytest.raises(AssertionError, match="loss"):
        check(method)


def test_the_prediction_sees_the_context_only():
    method = built()
    x, context, targets = batch()
    hidden = torch.ones(2, 36, dtype=torch.bool).scatter_(1, context, False).view(2, 1, 6, 6)
    hidden = hidden.repeat_interleave(4, 2).repeat_interleave(4, 3)
    seen = []
    predict = method.predictor.forward
    method.predictor.forward = lambda *a: seen.append(predict(*a)) or seen[-1]
    method((x, context, targets), lambda z: z)
    method((torch.where(hidden, torch.rand_like(x), x), context, targets), lambda z: z)
    method((torch.where(hidden, x, torch.rand_like(x)), context, targets), lambda z: z)
    assert torch.equal(seen[0], seen[1]) and not torch.allclose(seen[0], seen[2])


def test_only_student_and_predictor_are_trained():
    method = built()
    method(batch(), lambda z: z)["prediction"].backward()
    for name, p in method.named_parameters():
        assert (p.grad is not None) == name.startswith(("student.", "predictor.")), name


def test_blocks_have_the_papers_shares():
    method = built()
    sampler = method.inputs(ImageViews(ViewConfig(), 24))
    x, context, targets = sampler.apply(torch.zeros(3, 3, 24, 24, dtype=torch.uint8), sampler.draw(3, torch.Generator()))
    assert x.shape == (3, 3, 24, 24) and targets.shape[:2] == (3, 4) and context.shape[0] == 3
