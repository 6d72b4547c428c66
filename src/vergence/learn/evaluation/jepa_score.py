r"""JEPA-SCORE (Balestriero et al., Gaussian Embeddings: How JEPAs Secretly Learn Your Data Density, arXiv:2510.05949).

Where embeddings f(x) are uniform on a sphere, log p(x) = sum_k log s_k(J(x)) up to a constant, with the min(D, n) singular
values s_k of J(x) = df/dx, D embeddings by n inputs, each at least ``EPS``. For other encoders it is a score, and no density.
"""

import torch
from torch import Tensor, nn

from vergence.data.pixels import to_unit
from vergence.utils.checks import expect
from vergence.utils.devices import in_evaluation

__all__ = ["jacobian_score"]

EPS = 1e-6  # least singular value, the paper's
MAX_NUMBERS = 1 << 24  # numbers of Jacobians that are held at a time


def jacobian_score(encoder: nn.Module, x: Tensor) -> Tensor:
    """Returns the anomaly score of each item, -sum_k log s_k, of an encoder in evaluation mode.

    It takes D backward passes, and judges the space of the output: a projector behind the encoder gives another score.

    Args:
        encoder: Network (B, ...) -> (B, D), differentiable, that treats each item separately.
        x: Items (N, ...) on the encoder's device; bytes are scaled to [0, 1], other types must be floats.

    Returns:
        (N,) in nats, of the type of x, float32 for bytes; larger is more anomalous.

    Example:
        >>> double = nn.Linear(2, 2, bias=False)
        >>> _ = double.weight.data.copy_(2 * torch.eye(2))
        >>> [round(score, 4) for score in jacobian_score(double, torch.randn(2, 2)).tolist()]
        [-1.3863, -1.3863]
    """
    expect(x.dtype == torch.uint8 or x.is_floating_point(), "floats or bytes to differentiate by", x.dtype, "ids have none")
    with torch.inference_mode(False), torch.enable_grad(), in_evaluation(encoder):
        x = to_unit(x.clone())
        expect(bool(x.isfinite().all()), "finite items", "NaN or infinity", "drop such rows")
        if not len(x):
            return x.new_zeros(0)
        z = encoder(x[:1])
        expect(z.ndim == 2, "embeddings (B, D) of the encoder", tuple(z.shape), "average or flatten its output")
        most = max(1, MAX_NUMBERS // (z.shape[1] * x[0].numel()))
        return torch.cat([_log_volume(_jacobians(encoder, part)) for part in x.split(most)]).neg().to(x.dtype)


def _jacobians(encoder: nn.Module, x: Tensor) -> Tensor:
    """Returns the Jacobians (B, D, n) of embeddings by the n numbers of each item."""
    x = x.detach().requires_grad_()
    z = encoder(x)
    totals = z.sum(0) if z.requires_grad else ()
    rows = [torch.autograd.grad(total, x, retain_graph=True, allow_unused=True)[0] for total in totals]
    used, advice = rows and not any(row is None for row in rows), "a closed form has none; of your network remove no_grad"
    expect(used, "an encoder whose output is differentiable by its input", "none", advice)
    return torch.stack(rows, 1).flatten(2)


def _log_volume(J: Tensor) -> Tensor:
    """Returns the sum of the logarithms of the singular values of matrices (B, D, n), (B,) in float64.

    Their squares are the eigenvalues of the smaller Gram matrix, which float64 resolves below ``EPS``.
    """
    J = J.double()
    gram = J @ J.mT if J.shape[1] <= J.shape[2] else J.mT @ J
    squares: Tensor = torch.linalg.eigvalsh(gram)
    return squares.clamp(min=EPS**2).log().sum(1) / 2
