r"""What an image is made of, without a network: responses to patches of such images at several scales, pooled over all of it.

At each scale the image has a given area. Its patches are centered and divided by their deviation, and are compared with k-means
centers of the whitened patches of a sample, c_j (Coates, Lee, Ng, An analysis of single-layer networks in unsupervised feature
learning, 2011), with both signs and a soft threshold:

    r_j = max(0, +- c_j . w - 1/4).

The features are logarithms of the mean, the deviation and the fourth moment of each response over the image, and the same of the
logarithm of the contrast and of the mean of the patches.

Shapes: an image (3, H, W) in [0, 1]; J centers; features (D,).
"""

import math
from collections.abc import Iterable, Sequence

import torch
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor
from torch.nn import functional as F

from vergence.data.pixels import resize
from vergence.utils.checks import expect

SIDES = (128, 64, 32)  # square roots of the area, in pixels
STRIDES = (2, 1, 1)  # between the patches that are read, in pixels
PATCH, CENTERS = 6, 64
LONGEST = 8  # of a side to the other, at most
PATCHES, PER_IMAGE = 100_000, 400  # that centers are learned from: at most, and of one image
CONTRAST, WHITE, SOFT = 10 / 255, 0.1, 0.25  # added to deviations, to variances; threshold of a response
LEVEL, FLOOR = 1 / 512, 1e-4  # added before logarithms, of the contrast and of moments


def of_area(x: Tensor, side: float, step: int = 1, least: int = 1) -> Tensor:
    """Returns an image (3, H, W) of its shape at an area of about ``side`` x ``side`` pixels, sides multiples of ``step``."""
    height, width = x.shape[1:]
    ratio = min(max(math.sqrt(width / height), LONGEST**-0.5), LONGEST**0.5)
    h, w = (max(least, step, step * round(value / step)) for value in (side / ratio, side * ratio))
    return resize(x[None], h, w)[0] if (h, w) != (height, width) else x


class PooledCodes:
    """Maps images to features of the whole, by dictionaries of patches of ``images`` (3, H, W) in [0, 1] of any sizes."""

    def __init__(self, images: Sequence[Tensor]) -> None:
        expect(len(images), "images to learn from", "none", "give others")
        each = min(PER_IMAGE, PATCHES // len(images) + 1)
        scales = zip(*([of_area(x, side, least=2 * PATCH) for side in SIDES] for x in images), strict=True)
        self.filters = [_dictionary(scale, each) for scale in scales]

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> Tensor:
        """Returns features (D,) of an image; one channel stands for three equal ones."""
        parts = []
        for side, stride, (centers, offset) in zip(SIDES, STRIDES, self.filters, strict=True):
            parts += _pooled(of_area(x, side, least=2 * PATCH), centers, offset, stride)
        return torch.cat(parts)


def _dictionary(images: Iterable[Tensor], each: int) -> tuple[Tensor, Tensor]:
    """Returns centers as filters (J, 3, P, P) of normalized patches, and their offsets (J,)."""
    all_of = (x.unfold(1, PATCH, 1).unfold(2, PATCH, 1).permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1) for x in images)
    p = torch.cat([p[torch.linspace(0, len(p) - 1, min(each, len(p))).round().long()] for p in all_of]).double()
    p = p - p.mean(1, keepdim=True)
    p = p / (p.var(1, keepdim=True) + CONTRAST**2).sqrt()
    m = p.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((p - m).T))
    white = (vectors * (values.clamp(min=0) + WHITE).rsqrt()) @ vectors.T
    q = ((p - m) @ white).float()
    few = len(torch.unique(q.round(decimals=4), dim=0))
    fitted = MiniBatchKMeans(min(CENTERS, few), n_init=1, max_iter=20, batch_size=4096, random_state=0).fit(q.numpy())
    centers = F.normalize(torch.from_numpy(fitted.cluster_centers_).double(), dim=1)
    filters = F.pad(centers, (0, 0, 0, CENTERS - len(centers))) @ white
    return filters.float().view(-1, 3, PATCH, PATCH), (filters @ m).float()


def _pooled(x: Tensor, filters: Tensor, offset: Tensor, stride: int) -> list[Tensor]:
    """Returns the features of one scale."""
    n, total = filters[0].numel(), filters.sum((1, 2, 3))[:, None, None]
    filters = filters if len(x) == 3 else filters.sum(1, keepdim=True)
    mean = F.avg_pool2d(x[None], PATCH, stride).mean(1, keepdim=True)
    variance = (F.avg_pool2d(x[None].square(), PATCH, stride).mean(1, keepdim=True) - mean.square()).clamp(min=0)
    response = (F.conv2d(x[None], filters, stride=stride) - mean * total)[0]
    response = response / (variance[0] * (n / (n - 1)) + CONTRAST**2).sqrt() - offset[:, None, None]
    r = torch.cat([(response - SOFT).clamp(min=0), (-response - SOFT).clamp(min=0)]).flatten(1)
    plain = torch.cat([(variance.sqrt() + LEVEL).log(), mean], 1)[0].flatten(1)
    far = plain - plain.mean(1, keepdim=True)
    square = r.square()
    mean_r, second = r.mean(1), square.mean(1)
    moments = (mean_r, (second - mean_r.square()).clamp(min=0).sqrt(), square.square().mean(1).pow(0.25))
    spread = (far.square().mean(1).sqrt(), far.pow(4).mean(1).pow(0.25))
    return [*((value + FLOOR).log() for value in moments), plain.mean(1), *((value + 10 * FLOOR).log() for value in spread)]
