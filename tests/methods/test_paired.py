import pytest
import torch
from torch import nn

from vergence.methods.paired import PairedMethod
from vergence.objectives.vje import VJE


def whole(z):
    return z


def views(n=6, d=5):
    return torch.randn(n, d), torch.randn(n, d)


def test_terms_are_the_objectives_on_the_projected_embeddings():
    encoder, head, objective = nn.Linear(5, 8), nn.Linear(8, 4), VJE(4)
    a, b = views()
    torch.manual_seed(3)
    found = PairedMethod(encoder, objective, projector=head)((a, b), whole)
    torch.manual_seed(3)
    expected = objective(head(encoder(a)), head(encoder(b)))
    assert {k: v.item() for k, v in found.items()} == {k: v.item() for k, v in expected.items()}


def test_gather_is_called_once_a_view_with_embeddings():
    seen = []
    method = PairedMethod(nn.Linear(5, 8), VJE(8))
    method(views(), lambda z: seen.append(z.shape) or z)
    assert seen == [(6, 8), (6, 8)]


def test_a_second_encoder_takes_the_second_view():
    first, second = nn.Linear(5, 8), nn.Linear(3, 8)
    method = PairedMethod(first, VJE(8), target_encoder=second)
    loss = sum(method((torch.randn(6, 5), torch.randn(6, 3)), whole).values())
    loss.backward()
    assert first.weight.grad.abs().sum() > 0 and second.weight.grad.abs().sum() > 0


def test_teacher_is_an_exponential_moving_average_and_gets_no_gradient():
    method = PairedMethod(nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8)), VJE(8), teacher=0.9)
    start = [p.clone() for p in method.teacher.parameters()]
    with torch.no_grad():
        for p in method.encoder.parameters():
            p.add_(1.0)
    loss = sum(method(views(), whole).values())
    loss.backward()
    assert all(p.grad is None for p in method.teacher.parameters())
    method.after_step()
    for before, now, student in zip(start, method.teacher.parameters(), method.encoder.parameters(), strict=True):
        assert torch.allclose(now, 0.9 * before + 0.1 * student)


def test_diagnostics_hold_spread_and_the_objectives_own():
    method = PairedMethod(nn.Linear(5, 8), VJE(8))
    method(views(64), whole)
    found = method.diagnostics()
    assert {"std", "effective_rank", "variance_mean", "variance_cv"} <= found.keys()
    assert 0 < found["std"] < 1.5 and 1 <= found["effective_rank"] <= 5.0 + 1e-6


def test_low_precision_embeddings_reach_the_objective_as_float32():
    class Seen(VJE):
        def forward(self, za, zb):
            self.dtypes = za.dtype, torch.is_autocast_enabled("cpu")
            return super().forward(za, zb)

    objective = Seen(8).float()
    method = PairedMethod(nn.Linear(5, 8).float(), objective)
    with torch.autocast("cpu", torch.bfloat16):
        method((torch.randn(6, 5, dtype=torch.float32), torch.randn(6, 5, dtype=torch.float32)), whole)
    assert objective.dtypes == (torch.float32, False)


@pytest.mark.parametrize("bad", [{"teacher": 1.0}, {"teacher": -0.1}, {"teacher": 0.9, "target_encoder": nn.Linear(5, 8)}])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match="teacher"):
        PairedMethod(nn.Linear(5, 8), VJE(8), **bad)
