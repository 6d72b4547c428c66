"""What several processes do together in test_processes.py; a module of its own, so that they start quickly."""

import datetime
import os
import traceback

import numpy as np
import torch

from vergence.data.items import ArrayItems
from vergence.linear import JointEmbedding, Reconstruction, Supervised, reading

ROWS = 256  # in a block, once BLOCK is 1
PROCESSES = int(os.environ.get("VERGENCE_PROCESSES", "2"))


def data():
    """Five blocks and a bit; of the classes, two meet the one process in this order and the other in that."""
    g = np.random.default_rng(40)
    x = g.normal(size=(5 * ROWS + 77, 3)) * [3.0, 1.0, 0.5] + [0.0, 5.0, -2.0] + np.linspace(0, 2, 5 * ROWS + 77)[:, None]
    return x, np.c_[x[:, 0] + g.normal(size=len(x)), g.normal(size=len(x))], np.repeat(list("cbaabc"), ROWS)[: len(x)]


def noisy(x, generator):
    return 0.9 * x + torch.randn(x.shape, generator=generator, dtype=x.dtype) * (0.3 + x[:, :1].abs())


def batches(*arrays, size=100):
    for i in range(0, len(arrays[0]), size):
        parts = tuple(a[i : i + size] for a in arrays)
        yield parts if len(parts) > 1 else parts[0]


def twice():
    """A second call would count the items of the first once for each process; it is refused, and the first one stays."""
    model = Reconstruction(2, augmentation=SIGMA).partial_fit(X)
    try:
        model.partial_fit(X)
    except ValueError as error:
        if "one call of partial_fit in several processes" in str(error):
            return model
        raise
    if torch.distributed.is_initialized():
        raise AssertionError("the second call was not refused")
    return Reconstruction(2, augmentation=SIGMA).partial_fit(X)


def sampled(kind, *args, **options):
    return kind(*args, augmentation=noisy, n_draws=3, **options)


X, Y, LABELS = data()
SIGMA = [0.5, 1.0, 0.2]

CASES = {
    "covariance": lambda: JointEmbedding(2, augmentation=SIGMA).fit(X),
    "callable": lambda: sampled(JointEmbedding, 2).fit(X),
    "reconstruction": lambda: sampled(Reconstruction, 2).fit(X),
    "uncentered": lambda: sampled(Reconstruction, 2, center=False).fit(X),
    "items": lambda: sampled(Reconstruction, 2).fit(ArrayItems(X)),
    "iterable": lambda: sampled(Reconstruction, 2).fit(batches(X)),
    "supervised": lambda: sampled(Supervised).fit(X, Y),
    "supervised iterable": lambda: sampled(Supervised).fit(batches(X, Y)),
    "classes of an iterable": lambda: sampled(Supervised).fit(batches(X, LABELS)),
    "classes of an array": lambda: sampled(Supervised).fit(X, LABELS),
    "integers": lambda: Supervised(augmentation=SIGMA).fit(X, (LABELS[:, None] == np.array(list("abc"))).argmax(1)),
    "two calls": twice,
    "one block": lambda: sampled(Reconstruction, 2).fit(X[:200]),
    "targets of one block": lambda: sampled(Supervised).fit(X[:200], Y[:200]),
}  # what may leave the processes out of step comes last


def facts(name):
    """Everything that a fitted model says, as one dictionary of arrays; or the error, as text."""
    try:
        model = CASES[name]()
        found = {key: np.asarray(value) for key, value in vars(model).items() if key.endswith("_") and value is not None}
        return found | {"transformed": model.transform(X)}
    except Exception:
        return traceback.format_exc()


def work(rank, folder):
    """One of several processes: fits every case and writes what it found."""
    reading.BLOCK = 1
    torch.set_num_threads(1)
    store, wait = f"file://{folder}/store", datetime.timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=PROCESSES, timeout=wait)
    for i, name in enumerate(CASES):
        torch.save(facts(name), f"{folder}/{rank}-{i}.pt")
    torch.distributed.destroy_process_group()
