"""Writes the README's tables from the ledger (``benchmarks/results/*.jsonl``) and the objectives' folder.

python benchmarks/tables.py            # writes README.md
python benchmarks/tables.py --check    # exits with 1 where README.md says something else
"""

import importlib
import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from vergence import objectives

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
CONTROLS = ("untrained", "pixels", "pca")


def rows(name: str) -> list[dict]:
    """Returns the rows of a ledger file, oldest first."""
    file = HERE / "results" / f"{name}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def grid(header: list[str], body: list[list[str]]) -> str:
    """Returns a Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *body])


def spread(values: list[float]) -> str:
    """Returns mean and standard deviation over seeds, in per cent; the number of seeds is in the table."""
    values = [100 * v for v in values]
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def objectives_table() -> str:
    """One line an objective: from its own docstring, with what was measured."""
    trained = {row["config"]["model"]["objective"] for row in rows("training")}
    body = []
    for name in objectives.names():
        first = importlib.import_module(f"vergence.objectives.{name}").__doc__.splitlines()[0]
        title, _, paper = first.rstrip(".").partition(", arXiv:")
        state = "tested, measured on real data" if name in trained else "tested"
        body.append([f"`{name}`", title, f"arXiv:{paper}", state])
    return grid(["name", "what", "source", "status"], body)


def training_table() -> str:
    """One line a setting: mean and standard deviation over its seeds."""
    groups = defaultdict(list)
    for row in rows("training"):
        config = row["config"]
        key = (
            row["data"],
            row["recipe"],
            row["n_train"],
            config["fit"]["epochs"],
            json.dumps(config["data"].get("keep_classes")),
        )
        groups[key].append(row)
    body = []
    for (data, recipe, n, epochs, _), group in groups.items():
        group = list({row["seed"]: row for row in group}.values())  # of a seed run twice, the later row
        for name in ("z", "mu", *CONTROLS):
            found = [row["representations"][name] for row in group]
            if found[0]["knn30"] is None:
                continue
            label = f"{name} (control)" if name in CONTROLS else f"**{name}**"
            where = [data, f"`{recipe}`", f"{n:,} x {epochs}", str(len(group))] if name == "z" else ["", "", "", ""]
            values = [spread([f[k] for f in found]) for k in ("knn30", "probe")]
            p = [row["posterior"] for row in group]
            mean = statistics.mean(x["variance_mean"] for x in p)
            cv = statistics.mean(x["variance_cv"] for x in p)
            body.append([*where, label, *values, f"{mean:.2f}, {cv:.2f}" if name == "mu" else ""])
    header = [
        "data",
        "recipe",
        "items x epochs",
        "seeds",
        "representation",
        "kNN (30), %",
        "linear probe, %",
        "variance: mean, CV",
    ]
    return grid(header, body)


def speed_table() -> str:
    """The last row of each measured setting."""
    body = []
    last = {}
    for row in rows("bench"):
        last[row["measurement"], row["encoder"], row["size"], row["precision"]] = row
    for row in last.values():
        what = {"bench step": "whole step / bare encoder step", "bench embed": "`vergence embed` / bare forward pass"}
        setting = f"{row['encoder']}, {row['size']} px, batch {row['batch_size']}, {row['precision']}"
        body.append([what[row["measurement"]], setting, f"{row['ratio']:.2f}", f"`vergence {row['measurement']}`"])
    last = {(row["encoder"], row["our_precision"]): row for row in rows("lightly")}
    for row in last.values():
        setting = f"{row['encoder']}, 32 px, batch {row['batch_size']}; {row['our_precision']} / {row['their_precision']}"
        body.append(
            ["our training loop / lightly's SimCLR loop", setting, f"{row['ratio']:.2f}", "`benchmarks/against_lightly.py`"]
        )
    return grid(["what", "setting", "ratio", "command"], body)


def written(text: str) -> str:
    """Returns the README's text with its tables made anew."""
    tables = {"objectives": objectives_table, "training": training_table, "speed": speed_table}
    for name, make in tables.items():
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, lambda m, make=make: f"{m[1]}{make()}\n{m[2]}", text, flags=re.S)
        assert count == 1, f"README.md has no table '{name}'"
    return text


def main() -> None:
    text = README.read_text()
    new = written(text)
    if "--check" in sys.argv:
        sys.exit(0 if new == text else "README.md does not say what the ledger says: run python benchmarks/tables.py")
    README.write_text(new)


if __name__ == "__main__":
    main()
