"""Trains a recipe with several seeds, evaluates each run by the declared protocol, and adds a row a seed to the ledger.

README.md says how.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.runner import DATA, SEEDS, SETTINGS, Option, first, main
from experiments.shared import Timer, folder_name, kept_run

import vergence

TINY = {"limit": 64, "epochs": 1, "batch_size": 32, "encoder": "small", "size": 8, "device": "cpu", "knn_every": 0}
OPTIONS = {"data": Option(shape="first"), "data_root": DATA, "recipe": "vje_small", "limit": int, "epochs": int, "seeds": SEEDS}
OPTIONS |= {"set": SETTINGS, "wide": False, "runs": Path("runs"), "note": ""}


def readings(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of an evaluation that the ledger keeps, a dictionary a representation."""
    return {
        name: {
            "knn1": r["knn"] and r["knn"]["1"]["majority"],
            "knn30": r["knn"] and r["knn"]["30"]["majority"],
            "knn200_weighted": r["knn"] and r["knn"].get("200", {}).get("weighted"),
            "probe": r["probe"] and r["probe"]["accuracy"],
            "ridge": r["ridge"],
            "effective_rank": r["collapse"] and r["collapse"]["effective_rank"],
        }
        for name, r in record["representations"].items()
    }


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    settings = {"limit": a.limit, "epochs": a.epochs}
    settings = {name: value for name, value in settings.items() if value is not None} | a.set | (TINY if a.tiny else {})
    for seed in a.seeds:
        yield {"measurement": "training", "data": a.data, "recipe": a.recipe, "set": settings, "seed": seed}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Trains and evaluates one run; ``seconds`` is None where it was there already."""
    folder = a.runs / folder_name(a.data, a.recipe, **cell["set"], seed=cell["seed"])
    settings, timer = {"calibration_share": 0.0, "root": a.data_root, **cell["set"]}, Timer()
    trained_before = (folder / "model.safetensors").exists()
    run = kept_run(folder, a.data, recipe=a.recipe, seed=cell["seed"], **settings)
    seconds = None if trained_before else round(timer.seconds(), 1)
    record, config, metadata = vergence.evaluate(run, wide=a.wide).to_dict(), run.folder.config.to_dict(), run.folder.metadata
    representations = readings(record)
    print(json.dumps({name: representations[name] for name in ("z", "pixels", "untrained")}), flush=True)
    return {
        "config": config | {"data": {**config["data"], "root": None}},
        **{name: getattr(metadata, name) for name in ("n_train", "n_test", "precision", "device")},
        "trained_at": metadata.commit,
        "seconds": seconds,
        "representations": representations,
        "posterior": record["posterior"],
        "anomaly": record["anomaly"],
    }


if __name__ == "__main__":
    main(__doc__, "training", OPTIONS, cells, measure, tiny={"seeds": first}, shown=("seed", "seconds"))
