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
    out = []
    for sign in (1, -1):
        for d in D:
            for i in range(pool):
                for j in range(pool):
                    total, weights = 0.0, 0.0
                    for y, top in enumerate(rows):
                        for x, left in enumerate(columns):
                            weight = weight_in_cell(y, len(rows), i, pool) * weight_in_cell(x, len(columns), j, pool)
                            r = float(d @ (Z @ (normalized(patch_at(image, top, left, size)) - m)))
                            total, weights = total + weight * max(sign * r - theta, 0.0), weights + weight
                    out.append((total / weights) ** (1 / 3))
    return torch.tensor(out)


def weight_in_cell(position, positions, cell, cells):
    """Gaussian of the distance to the cell's center, with a deviation of 0.44 of the cell's side; 1 where there is one cell."""
    if cells == 1:
        return 1.0
    distance = (position + 0.5) / positions - (cell + 0.5) / cells
    return math.exp(-0.5 * (distance * cells / 0.44) ** 2)
