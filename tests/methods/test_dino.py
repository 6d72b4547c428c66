import pytest
import torch
from tests.reference import image_methods as reference

from vergence.data.config import ViewConfig
from vergence.data.views import ImageViews
from vergence.encoders.networks import encoder
from vergence.methods import dino as module
from vergence.methods.dino import Dino

SIZES = {"outputs": 6, "hidden": 8, "bottleneck": 5}


def built(**options):
    torch.manual_seed(1)
    net = encoder("small", (1, 8, 8), torch.tensor([0.5]), torch.tensor([0.3])).double()
    method = Dino(net, (1, 8, 8), **{**SIZES, "local_crops": 2, "fixed_prototypes": 0.0, **options}).double()
    for p in (*method.student.parameters(), *method.head.parameters()):
        p.data += 0.1 * torch.randn_like(p)  # unlike the teacher
    method.kept = method.encoder, method.teacher_head  # those that the check reads, whatever an error puts in their place
    return method


def crops(n=4):
    return torch.rand(n, 1, 8, 8), torch.rand(n, 1, 8, 8), torch.rand(n, 1, 4, 4), torch.rand(n, 1, 4, 4)


def outputs(method, views):
    """Returns the teacher's outputs of large crops and the student's of all, one pass for each size."""
    groups = [torch.cat(views[:2]), torch.cat(views[2:])]
    with torch.no_grad():
        teacher = method.kept[1](method.kept[0](groups[0])).view(2, len(views[0]), -1)
    student = [method.head(method.student(group)).view(2, len(views[0]), -1) for group in groups]
    return teacher, torch.cat(student)


def check(method):
    """Loss, gradient, center and teacher are those of loops, for two steps of the schedule."""
    center = torch.zeros(6)
    for step in range(2):
        method.before_step(step / 2)
        views = crops()
        teacher, student = outputs(method, views)
        found = method(views, lambda z: z)["cross_entropy"]
        expected = reference.cross_entropy(teacher, student, center, 0.1, 0.04)
        assert torch.allclose(found, expected, rtol=1e-8), "loss"
        parameters = [*method.student.parameters(), *method.head.parameters()]
        gradients = [torch.autograd.grad(loss, parameters) for loss in (found, expected)]
        for a, b in zip(*gradients, strict=True):
            assert torch.allclose(a, b, rtol=1e-6, atol=1e-8), "gradient"
        center = reference.moved_center(center, teacher, 0.9)
        assert torch.allclose(method.loss.center.flatten(), center, atol=1e-12), "center"
        check_the_teacher(method, 1 - 0.004 * (1 + (1.0, 0.0)[step]) / 2)  # cos(0), cos(pi / 2)


def check_the_teacher(method, momentum):
    pairs = tuple(zip(method.kept, (method.student, method.head), strict=True))
    before = [{name: p.clone() for name, p in teacher.named_parameters()} for teacher, _ in pairs]
    method.after_step()
    for old, (teacher, student) in zip(before, pairs, strict=True):
        expected = reference.moved(old, dict(student.named_parameters()), momentum)
        assert all(torch.allclose(p, expected[name], atol=1e-15, rtol=0) for name, p in teacher.named_parameters()), "teacher"


def test_loss_gradient_center_and_teacher_are_those_of_loops_step_by_step():
    check(built())


def with_crops_swapped(method):
    forward = method.loss.forward
    method.loss.forward = lambda t, s: forward(t[::-1], s)


def without_center(method):
    method.loss.update_center = lambda out: None


def with_student_targets(method):
    method.teacher_head = method.head


WRONG = {
    "temperature": (lambda m: setattr(m.loss, "teacher_temp", 0.07), "loss"),
    "student's temperature": (lambda m: setattr(m.loss, "student_temp", 0.2), "loss"),
    "crops paired with themselves": (with_crops_swapped, "loss"),
    "no center": (without_center, "center"),
    "no teacher": (with_student_targets, "loss"),
    "momentum": (lambda m: setattr(m, "momentum", 0.99), "teacher"),
    "no schedule": (lambda m: setattr(m, "before_step", lambda progress: None), "teacher"),
}


@pytest.mark.parametrize("name", WRONG)
def test_planted_errors_are_caught(name):
    method = built()
    plant, words = WRONG[name]
    plant(method)
    with pytest.raises(AssertionError, match=words):
        check(method)


def test_a_teacher_that_does_not_follow_is_caught(monkeypatch):
    monkeypatch.setattr(module, "follow", lambda *a: None)
    with pytest.raises(AssertionError, match="teacher"):
        check(built())


def test_only_the_student_is_trained():
    method = built()
    method(crops(), lambda z: z)["cross_entropy"].backward()
    for name, p in method.named_parameters():
        trained = name.startswith(("student.", "head."))
        assert (p.grad is not None and p.requires_grad) if trained else (p.grad is None and not p.requires_grad), name


def test_prototypes_stay_where_they_are_in_the_first_steps():
    method, moves = built(fixed_prototypes=0.5), []
    for progress in (0.0, 0.49, 0.5):
        method.before_step(progress)
        method.zero_grad()
        method(crops(), lambda z: z)["cross_entropy"].backward()
        moves.append(bool(method.head.prototypes.weight.grad.any()))
        assert method.frozen() == (() if moves[-1] else (method.head.prototypes.weight,))
        assert method.head.layers[0].weight.grad.any()
    assert moves == [False, False, True]


def test_crops_have_the_papers_sizes_and_strengths():
    method = built(local_crops=3)
    sampler = method.inputs(ImageViews(ViewConfig(crop=(0.4, 1.0)), 8))
    draws = sampler.draw(2000, torch.Generator().manual_seed(0))
    views = sampler.apply(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), tuple({k: v[:4] for k, v in d.items()} for d in draws))
    assert [view.shape[2] for view in views] == [8, 8, 4, 4, 4]
    areas = [(draw["area"].min().item(), draw["area"].max().item()) for draw in draws]
    assert all(0.4 <= low < 0.41 and 0.99 < high <= 1 for low, high in areas[:2])
    assert all(0.05 <= low < 0.06 and 0.39 < high <= 0.4 for low, high in areas[2:])
    blurred = [draw["blur"].double().mean().item() for draw in draws]
    assert blurred == pytest.approx([1.0, 0.1, 0.5, 0.5, 0.5], abs=0.05) and blurred[0] == 1
    assert [draw["solarize"].double().mean().item() for draw in draws] == pytest.approx([0, 0.2, 0, 0, 0], abs=0.04)
    plain = built(asymmetric=False, local_crops=0).inputs(ImageViews(ViewConfig(blur=0.0), 8))
    assert len(plain.kinds) == 2 and all(kind.config.blur == 0 for kind in plain.kinds)


def test_a_transformer_takes_small_crops_only_of_dynamic_size():
    name = "timm:vit_tiny_patch16_224,patch_size=4,embed_dim=12,depth=1,num_heads=3"
    statistics = torch.zeros(1), torch.ones(1)
    with pytest.raises(ValueError, match=r"takes crops of 8 pixels.*dynamic_img_size=True"):
        Dino(encoder(name, (1, 16, 16), *statistics), (1, 16, 16), **SIZES)
    method = Dino(encoder(f"{name},dynamic_img_size=True", (1, 16, 16), *statistics), (1, 16, 16), **SIZES, local_crops=1)
    views = torch.rand(2, 1, 16, 16), torch.rand(2, 1, 16, 16), torch.rand(2, 1, 8, 8)
    assert method(views, lambda z: z)["cross_entropy"].isfinite()


@pytest.mark.float32
def test_the_loss_is_that_of_float32_under_autocast():
    method, seen = built().float(), []
    method.loss.register_forward_pre_hook(
        lambda module, args: seen.append((torch.is_autocast_enabled("cpu"), {x.dtype for part in args for x in part}))
    )
    with torch.autocast("cpu", torch.bfloat16):
        value = method(crops(), lambda z: z)["cross_entropy"]
    assert seen == [(False, {torch.float32})] and value.dtype == torch.float32
