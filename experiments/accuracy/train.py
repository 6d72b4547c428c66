"""Trains a recipe with several seeds, evaluates each run by the declared protocol, and adds a row a seed to the ledger.

python -m experiments.accuracy.train cifar10 --data-root DATA --recipe vje_small --limit 10000 --seeds 0 1 2
python -m experiments.accuracy.train cifar10 --data-root DATA --recipe vje_cifar10_200 --seeds 0 1 2      (on a GPU)
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import vergence
from experiments import ledger

TINY = {"limit": 64, "epochs": 1, "batch_size": 32, "encoder": "small", "size": 8, "device": "cpu", "knn_every": 0}


def folder_of(a: argparse.Namespace, settings: dict[str, Any], seed: int) -> Path:
    """Returns the run's folder, which names its settings."""
    words = "-".join(f"{name}={value}" for name, value in settings.items() if name != "root")
    return a.runs / f"{a.data}-{a.recipe}-{words}-seed{seed}".replace("/", "_").replace(" ", "")


def trained(a: argparse.Namespace, settings: dict[str, Any], seed: int) -> tuple[vergence.Run, float | None]:
    """Returns a run of one seed and the seconds it took; loads a finished one (None seconds), resumes one that was stopped."""
    folder = folder_of(a, settings, seed)
    if (folder / "model.safetensors").exists():
        return vergence.load(folder), None
    began = time.monotonic()
    if (folder / "config.json").exists():
        run = vergence.train(None, out=folder, resume=True)
    else:
        run = vergence.train(a.data, out=folder, recipe=a.recipe, seed=seed, **{"calibration_share": 0.0, **settings})
    return run, round(time.monotonic() - began, 1)


def readings(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of an evaluation that the ledger keeps, a dictionary a representation."""
    return {
        name: {
            "knn1": r["knn"] and r["knn"]["1"]["majority"],
            "knn30": r["knn"] and r["knn"]["30"]["majority"],
            "knn200_weighted": r["knn"] and r["knn"].get("200", {}).get("weighted"),
            "probe": r["probe"] and r["probe"]["accuracy"],
            "effective_rank": r["collapse"]["effective_rank"],
        }
        for name, r in record["representations"].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--recipe", default="vje_small")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of the run or the objective")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--note", default="")
    a = ledger.parse(parser, "training")

    from vergence.cli.options import parse_settings

    settings = {"root": a.data_root, "limit": a.limit, "epochs": a.epochs}
    settings = {name: value for name, value in settings.items() if value is not None} | parse_settings(a.set)
    if a.tiny:
        settings |= TINY
    for seed in a.seeds[: 1 if a.tiny else None]:
        run, seconds = trained(a, settings, seed)
        record = vergence.evaluate(run).to_dict()
        config = run.folder.config.to_dict()
        values = {
            "measurement": "training",
            "data": a.data,
            "recipe": a.recipe,
            "note": a.note,
            "config": config | {"data": {**config["data"], "root": None}},
            **{k: getattr(run.folder.metadata, k) for k in ("n_train", "n_test", "precision")},
            "trained_at": run.folder.metadata.commit,
            "seconds": seconds,
            "representations": readings(record),
            "posterior": record["posterior"],
            "anomaly": record["anomaly"],
        }
        ledger.add(a.out, ledger.row(values, seed=seed, device=run.folder.metadata.device), shown=("seed", "seconds"))
        print(json.dumps({name: values["representations"][name] for name in ("z", "pixels", "untrained")}), flush=True)


if __name__ == "__main__":
    main()
