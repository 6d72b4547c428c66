"""Compares the linear estimators with a bare matrix product, with scikit-learn, and with SGD on the same objective.

python benchmarks/linear_speed.py --scratch FOLDER --data-root DATA      # FOLDER needs 2 GB; about four minutes on two cores

bare      JointEmbedding.fit on 1,000,000 x 512 float32 in a memory-mapped file / the blocked product X'X in torch on the
          same file, in turn; and the peak resident memory of a process that only fits
others    JointEmbedding.fit, scikit-learn's PCA and CCA, and SGD on two views of the same items, each with the sine of the
          largest principal angle between its solution and the population's. CCA and SGD, which see two sampled views of an
          item, are compared with JointEmbedding on two sampled views; the median of three rounds
advise    seconds for advice on CIFAR-10's 50,000 training images under the default views, and for sampling those views alone
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import ledger
import numpy as np
import torch
from sklearn.cross_decomposition import CCA
from sklearn.decomposition import PCA
from torch import Tensor

from vergence.data.config import DataConfig, ViewConfig
from vergence.data.sources import open_data
from vergence.data.views import ImageViews
from vergence.linear import JointEmbedding, advise, solutions

N, D, ROWS = 1_000_000, 512, 8192
ITEMS, WIDTH, K = 20_000, 128, 8


def mapped(scratch: Path) -> np.memmap:
    """Returns the file's array; writes the file first if it does not exist."""
    file = scratch / f"linear-{N}-{D}.f32"
    if not file.exists():
        scratch.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        mix = (rng.normal(size=(D, D)) / D**0.5).astype(np.float32)
        out = np.memmap(file, np.float32, "w+", shape=(N, D))
        for start in range(0, N, 50_000):
            rows = out[start : start + 50_000]
            rows[:] = rng.standard_normal(rows.shape, dtype=np.float32) @ mix + 1
        out.flush()
    return np.memmap(file, np.float32, "r", shape=(N, D))


def bare(x: np.memmap) -> Tensor:
    """Returns X'X, block by block, and nothing else."""
    total = torch.zeros(D, D)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        for start in range(0, N, ROWS):
            block = torch.from_numpy(x[start : start + ROWS])
            total += block.T @ block
    return total


def seconds(f: Callable[[], object]) -> float:
    began = time.perf_counter()
    f()
    return time.perf_counter() - began


def against_bare(scratch: Path, rounds: int, tiny: bool) -> dict:
    """Returns the ratio of times (medians of alternating rounds) and the fit's peak memory in MiB."""
    x = mapped(scratch)
    memory = ["--scratch", scratch, "--memory", *["--tiny"] * tiny]  # first: a child's peak is never below its parent's
    alone = subprocess.run([sys.executable, __file__, *memory], capture_output=True, text=True, check=True)
    bare(x)
    times = [(seconds(lambda: bare(x)), seconds(lambda: JointEmbedding(32).fit(x))) for _ in range(rounds)]
    ratio = statistics.median(fit for _, fit in times) / statistics.median(product for product, _ in times)
    return {"measurement": "fit / X'X", "n": N, "d": D, "ratio": ratio, "seconds": times, "peak_mib": float(alone.stdout)}


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Returns items of 128 features, the covariance of an augmentation, and the population's W."""
    generator = torch.Generator().manual_seed(0)
    Q = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64))[0]
    g = torch.logspace(2, -1, WIDTH, dtype=torch.float64)
    a = torch.cat([torch.full((WIDTH // 2,), 30.0), torch.full((WIDTH // 2,), 3.0)]).double()
    a[WIDTH // 2 : WIDTH // 2 + K] = torch.linspace(0.01, 0.1, K)  # the invariant ones are not the large ones
    G, Sigma = Q @ g.diag() @ Q.T, Q @ a.diag() @ Q.T
    X = torch.randn(ITEMS, WIDTH, generator=generator, dtype=torch.float64) @ (Q * g.sqrt()).T
    return X, Sigma, solutions.joint_embedding(G, G + Sigma)[0][:K]


def sine(a: Tensor, b: Tensor) -> float:
    """Returns the sine of the largest principal angle between two row spaces."""
    p, q = (torch.linalg.qr(rows.T)[0] for rows in (a, b))
    return float(torch.linalg.matrix_norm(q - p @ (p.T @ q), 2))


def sgd(a: Tensor, b: Tensor, epochs: int = 100, penalty: float = 1.0) -> Tensor:
    """Returns W (K, D) of min |W a - W b|^2 + penalty |W S W' - I|^2 by Adam on batches of 500, standardized for its sake.

    Rate, penalty and epochs are the best of {0.003, 0.02} x {1, 10} x {30, 100}.
    """
    torch.manual_seed(0)
    scale = torch.cat([a, b]).std(0)
    a, b = a / scale, b / scale
    W = torch.nn.Parameter(torch.randn(K, WIDTH, dtype=a.dtype) / WIDTH**0.5)
    optimizer = torch.optim.Adam([W], lr=3e-3)
    for _ in range(epochs):
        for i in torch.randperm(len(a)).split(500):
            za, zb = a[i] @ W.T, b[i] @ W.T
            second = (za.T @ za + zb.T @ zb) / (2 * len(i))
            loss = (za - zb).square().sum(1).mean() + penalty * (second - torch.eye(K, dtype=a.dtype)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return W.detach() / scale


def against_others(rounds: int) -> list[dict]:
    """Returns a row for each way to the same subspace."""
    X, Sigma, W = data()
    L = torch.linalg.cholesky(Sigma)

    def tau(x: Tensor, generator: torch.Generator) -> Tensor:
        return x + torch.randn(x.shape, generator=generator, dtype=x.dtype) @ L.T

    a, b = (tau(X, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    cca = CCA(K, scale=False, max_iter=2000)
    ways = {  # what each computes, and the sampled views of an item that it sees
        "JointEmbedding, covariance": (lambda: JointEmbedding(K, augmentation=Sigma.numpy()).fit(X.numpy()).components_, 0),
        "JointEmbedding, 2 draws": (lambda: JointEmbedding(K, augmentation=tau, n_draws=2).fit(X.numpy()).components_, 2),
        "scikit-learn PCA": (lambda: PCA(K).fit(X.numpy()).components_, 0),
        "scikit-learn CCA of two views": (lambda: cca.fit(a.numpy(), b.numpy()).x_rotations_.T, 2),
        "the same objective by SGD (Adam), 100 epochs": (lambda: sgd(a, b).numpy(), 2),
    }
    JointEmbedding(K).fit(X[:500].numpy())  # the first call loads modules, which is not timed
    PCA(K).fit(X[:500].numpy())
    times: dict[str, list[float]] = {name: [] for name in ways}
    sines = {}
    for _ in range(rounds):
        for name, (way, _) in ways.items():
            began = time.perf_counter()
            components = torch.from_numpy(np.ascontiguousarray(way()))
            times[name].append(time.perf_counter() - began)
            sines[name] = sine(components, W)
    middle = {name: statistics.median(values) for name, values in times.items()}
    rows = []
    for name, (_, draws) in ways.items():
        against = "JointEmbedding, 2 draws" if draws else "JointEmbedding, covariance"
        row = {"measurement": "ways", "way": name, "n": ITEMS, "d": WIDTH, "k": K, "draws": draws, "rounds": times[name]}
        row |= {"seconds": middle[name], "against": against, "ratio": middle[name] / middle[against], "sine": sines[name]}
        rows.append(row)
    return rows


def advice(root: str) -> dict:
    """Returns the seconds that advice takes, and the ratio to sampling four views of each image."""
    data = open_data(DataConfig(source="cifar10", root=root))
    views, generator = ImageViews(ViewConfig(), 32), torch.Generator().manual_seed(0)

    def sampled() -> None:
        for x in data.train.array.split(1024):
            for _ in range(4):
                views(x, generator)

    alone, whole = seconds(sampled), seconds(lambda: advise(data.train, views))
    return {"measurement": "advise", "n": len(data.train), "d": 3072, "seconds": whole, "ratio": whole / alone}


def main() -> None:
    global N, ITEMS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--data-root")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="fit once and print the peak resident memory in MiB")
    a = ledger.parse(parser, "linear")
    if a.tiny:
        N, ITEMS, a.rounds = 10_000, 500, 1
    if a.memory:
        JointEmbedding(32).fit(mapped(a.scratch))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    rows = [against_bare(a.scratch, a.rounds, a.tiny), *against_others(1 if a.tiny else 3)]
    rows += [advice(a.data_root)] if a.data_root and not a.tiny else []
    for row in rows:
        ledger.add(a.out, ledger.row(row, seed=0))


if __name__ == "__main__":
    main()
