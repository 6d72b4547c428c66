"""Slow reference of patch features (Coates, Lee, Ng, AISTATS 2011) and of a second layer, one patch at a time, in float64."""

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


def second(windows, m, Z, D, c, theta):
    """f (8 K,) of the second layer, from the first layer's maps (2, K', 36): patches of 2 x 2 windows, one at a time."""
    found = torch.zeros(2, len(D), 2, 2)
    for k, d in enumerate(D):
        for i in range(2):
            for j in range(2):
                totals, weights = [0.0, 0.0], 0.0
                for y in range(5):
                    for x in range(5):
                        p = []
                        for sign in windows:
                            for atom in sign:
                                p += [atom[6 * (y + a) + x + b].item() for a in range(2) for b in range(2)]
                        mean = sum(p) / len(p)
                        length = math.sqrt(sum((v - mean) ** 2 for v in p))
                        n = torch.tensor([(v - mean) / length for v in p])
                        r = float(d @ (Z.T @ (n - m))) / c
                        weight = weight_in_cell(y, 5, i, 2) * weight_in_cell(x, 5, j, 2)
                        weights += weight
                        totals = [total + weight * max(s * r - theta, 0.0) for s, total in zip((1, -1), totals, strict=True)]
                found[:, k, i, j] = torch.tensor([(total / weights) ** (1 / 3) for total in totals])
    return found.flatten()


def second_whitening(patches, d):
    """Mean m and Z = U diag((w + 0.1 mean w)^(-1/2)) of patches (n, F), for the d largest eigenvalues w of their covariance."""
    w, U = torch.linalg.eigh(torch.cov(patches.T))
    w, U = w[-d:], U[:, -d:]
    return patches.mean(0), U @ torch.diag((w + 0.1 * w.mean()) ** -0.5)
