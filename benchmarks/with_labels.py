"""What labels add to the closed form's embedding: a linear map and a network trained with all labels, beside kNN on it.

    python benchmarks/with_labels.py cifar10 --data-root DATA --limit 10000

A network that is trained without labels behind the closed form (`docs/trained.md`) can hardly do better than one that is trained
with them. All images are given to the closed form, and their labels to scikit-learn's ``MLPClassifier`` on embeddings of unit
length; its penalty is the best of three on a tenth of the training images, which also end the training. One row a seed goes to
``results/with_labels.jsonl``; accuracies are those of the test images, in percent.
"""

import argparse
import tempfile
import time
from pathlib import Path

import ledger
import two_cores
from sklearn.neural_network import MLPClassifier
from torch import Tensor
from torch.nn import functional as F

import vergence
from vergence.evaluation import features

PENALTIES = (1e-3, 1.0, 10.0)
LENGTH = 20.0  # of an embedding, so that first weights of scikit-learn's size suit it
SETTINGS = {"early_stopping": True, "n_iter_no_change": 8, "max_iter": 60, "batch_size": 128, "learning_rate_init": 5e-4}


def network(train: Tensor, labels: Tensor, width: int, seed: int) -> MLPClassifier:
    """Returns the network of the best penalty on the part of the training images that it keeps for that."""
    x = LENGTH * F.normalize(train, dim=1).numpy()
    fitted = [MLPClassifier((width,), alpha=alpha, random_state=seed, **SETTINGS).fit(x, labels.numpy()) for alpha in PENALTIES]
    return max(fitted, key=lambda one: one.best_validation_score_)


def measure(a: argparse.Namespace) -> ledger.Row:
    """Fits the closed form and the network; returns the accuracies on test images."""
    began = time.process_time()
    also = {"encoder": "patches:atoms=16,second=16,directions=32,dim=16"} if a.tiny else {}
    settings = {"root": a.data_root, "limit": a.limit, "calibration_share": 0.0, "device": "cpu", "seed": a.seed, **also}
    with tempfile.TemporaryDirectory() as folder:
        run = vergence.train(a.source, recipe="patches", out=Path(folder) / "run", **settings)
        parts = two_cores.parts(a, run.folder.config)
        z = [features.collect(run.method.encoder.eval(), part, size=run.size, device=run.device)[0].float() for part in parts]
        encoder = str(run.folder.config.model.encoder)
    labels = [part.labels for part in parts]
    best = network(z[0], labels[0], a.width, a.seed)
    found = best.score(LENGTH * F.normalize(z[1], dim=1).numpy(), labels[1].numpy())
    values = {"encoder": encoder, "width": a.width, "penalty": best.alpha, "epochs": best.n_iter_}
    values |= two_cores.accuracies("", *z, labels) | {"network": round(100 * found, 2)}
    return values | {"cpu_seconds": round(time.process_time() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    two_cores.arguments(parser)
    parser.add_argument("--width", type=int, default=512, help="of the network's hidden layer")
    a = ledger.parse(parser, "with_labels")
    if a.tiny:
        a.limit, a.width = 200, 8
    row = ledger.row({"data": a.source, "limit": a.limit, **measure(a)}, seed=a.seed)
    ledger.add(None if a.choose else a.out, row)


if __name__ == "__main__":
    main()
