"""Trains a recipe with several seeds, evaluates each run by the declared protocol, and adds a row a seed to the ledger.

python benchmarks/train.py cifar10 --data-root DATA --recipe vje_small --limit 10000 --seeds 0 1 2
python benchmarks/train.py cifar10 --data-root DATA --recipe vje_cifar10_200 --seeds 0 1 2      (a GPU's work)
"""

import argparse
import json
import shlex
import sys
import time
from pathlib import Path

import vergence


def command(data_root: str) -> str:
    """Returns the call that makes the row, without this machine's folders."""
    kept, words = [], iter(sys.argv[1:])
    for word in words:
        if word in ("--runs", "--out"):
            next(words)
        else:
            kept.append("DATA" if word == data_root else word)
    return "python benchmarks/train.py " + shlex.join(kept)


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
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "training.jsonl")
    a = parser.parse_args()

    from vergence.cli.options import parse_settings

    settings = {"root": a.data_root, "limit": a.limit, "epochs": a.epochs}
    settings = {name: value for name, value in settings.items() if value is not None} | parse_settings(a.set)
    for seed in a.seeds:
        name = f"{a.data}-{a.recipe}-{'-'.join(f'{k}={v}' for k, v in settings.items() if k != 'root')}-seed{seed}"
        folder = a.runs / name.replace("/", "_").replace(" ", "")
        began = time.monotonic()
        finished = (folder / "model.safetensors").exists()
        resume = (folder / "config.json").exists()
        run = (
            vergence.load(folder)
            if finished
            else vergence.train(
                None if resume else a.data,
                out=folder,
                resume=resume,
                **({} if resume else {"recipe": a.recipe, "seed": seed, **settings}),
            )
        )
        seconds = time.monotonic() - began
        record = vergence.evaluate(run).to_dict()
        kept = {
            name: {
                "knn1": r["knn"] and r["knn"]["1"]["majority"],
                "knn30": r["knn"] and r["knn"]["30"]["majority"],
                "knn200_weighted": r["knn"] and r["knn"].get("200", {}).get("weighted"),
                "probe": r["probe"] and r["probe"]["accuracy"],
                "effective_rank": r["collapse"]["effective_rank"],
            }
            for name, r in record["representations"].items()
        }
        row = {
            "measurement": "training",
            "command": command(a.data_root),
            "data": a.data,
            "recipe": a.recipe,
            "seed": seed,
            "note": a.note,
            "config": run.folder.config.to_dict() | {"data": {**run.folder.config.to_dict()["data"], "root": None}},
            **{k: getattr(run.folder.metadata, k) for k in ("n_train", "n_test", "device", "precision", "torch", "commit")},
            "seconds": None if finished else round(seconds, 1),
            "representations": kept,
            "posterior": record["posterior"],
            "anomaly": record["anomaly"],
        }
        with a.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps({"seed": seed, "z": kept["z"], "pixels": kept["pixels"], "untrained": kept["untrained"]}), flush=True)


if __name__ == "__main__":
    main()
