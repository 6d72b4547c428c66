"""Slow reference of the patch features (Coates, Lee, Ng, AISTATS 2011), one patch at a time, in float64."""

import math

import torch

EPS = 10 / 255**2


def patch_at(image, top, left, size):
    """The patch of an image (C, H, W) as a vector, in the order of its channels, rows and columns."""
    return torch.stack([image[c, top + i, left + j] for c in range(len(image)) for i in range(size) for j in range(size)])


def normalized(p):
    mean = sum(p.tolist()) / len(p)
    var = sum((v - mean) ** 2 for v in p.tolist()) / len(p)
    return (p - mean) / math.sqrt(var + EPS)


def whitening(patches, regularization):
    """Mean m and Z = U diag((w + r)^(-1/2)) U^T of normalized patches (n, F)."""
    m = patches.mean(0)
    w, U = torch.linalg.eigh(torch.cov(patches.T))
    return m, U @ torch.diag((w + regularization) ** -0.5) @ U.T


def features(image, m, Z, D, size, theta, pool, stride=1):
    """f (2 K pool^2,): positive and then negative parts of each atom, each with its cells by rows."""
    rows = range(0, image.shape[1] - size + 1, stride)
    columns = range(0, image.shape[2] - size + 1, stride)
    ends = [[round(i * len(side) / pool) for i in range(pool + 1)] for side in (rows, columns)]
    out = []
    for sign in (1, -1):
        for d in D:
            for i in range(pool):
                for j in range(pool):
                    total, count = 0.0, 0
                    for top in rows[ends[0][i] : ends[0][i + 1]]:
                        for left in columns[ends[1][j] : ends[1][j + 1]]:
                            r = float(d @ (Z @ (normalized(patch_at(image, top, left, size)) - m)))
                            total, count = total + max(sign * r - theta, 0.0), count + 1
                    out.append(math.sqrt(total / count))
    return torch.tensor(out)
