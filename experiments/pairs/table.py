"""Tables of densities on pairs: conditional models, samples, and the joint objectives; each reads its ledgers."""

import statistics

from experiments.ledger import by_setting, grid, plus_minus, rows


def branches_table(data: str) -> str:
    """A line for each model on a set of ``experiments/pairs/run.py``: mean and standard deviation over seeds, and the truth."""
    groups = by_setting([row for row in rows("branches") if row["data"] == data and "model" in row], lambda row: row["model"])
    known = any(row["on_branch"] is not None for found in groups.values() for row in found)
    body = []
    for model, found in groups.items():
        cells = [plus_minus([row[key] for row in found], 2) for key in ("nll",)]
        cells += [plus_minus([100 * row[key] for row in found], 0) for key in ("on_branch", "covered") if known]
        cells += [plus_minus([100 * row["inside_90"] for row in found], 0)]
        cells += [plus_minus([row["pit_ks"] for row in found], 3)]
        body.append([model, *cells, f"{statistics.median(row['seconds'] for row in found):.2g}"])
    truths = [row["truth"] for row in next(iter(groups.values()), []) if row["truth"] is not None]
    head = ["model", "NLL", *(["on a branch, %", "covered, %"] if known else []), "inside 90 %, %", "PIT", "seconds"]
    if truths:
        body.append(["**the truth**", plus_minus(truths, 2), *[""] * (len(head) - 2)])
    return grid(head, body)


def samples_table() -> str:
    """A line for each sampler on a set of ``experiments/pairs/run.py``."""
    groups = by_setting([row for row in rows("branches") if "sampler" in row], lambda row: (row["data"], row["sampler"]))
    body = []
    for (data, sampler), found in groups.items():
        keys = {"mmd": 4, "sliced_wasserstein": 3, "precision": 2, "recall": 2, "coverage": 2}
        cells = [plus_minus([row[key] for row in found], digits) for key, digits in keys.items()]
        on = [100 * row["on_branch"] for row in found if "on_branch" in row]
        body.append([data, sampler, *cells, plus_minus(on, 0) if on else ""])
    return grid(["data", "density", "MMD²", "sliced Wasserstein", "precision", "recall", "coverage", "on a branch, %"], body)


def mixtures_table() -> str:
    """The last row of each measurement of the mixture estimators."""
    body = []
    last = {(row["measurement"], row.get("n"), row.get("d")): row for row in [*rows("mixtures"), *rows("neural_gas")]}
    for (name, *_), row in last.items():
        if name == "em":
            for precision in ("double", "mixed"):
                what = f"scikit-learn / `GaussianMixture`, `{precision}`: {row['n']:,} x {row['d']}, K = {row['k']}, full"
                here, there = row["iterations"][precision], row["iterations"]["scikit-learn"]
                apart = row["apart_after_same_iterations"][precision]
                note = f"{here} iterations against {there}; after as many, log-likelihoods {apart:.0e} nats apart"
                body.append([what, f"{row['ratio'][precision]:.1f}", note])
        elif name == "queries":
            note = f"{row['n'] / row['seconds']:,.0f} queries/s; means {row['apart']:.0e} apart"
            body.append(
                [f"gmr / `condition`, {row['n']:,} queries, K = {row['k']}, {row['d']} features", f"{row['ratio']:.0f}", note]
            )
        elif name == "signals / s":
            what = f"plain Python / growing neural gas, {row['nodes']} nodes, {row['d']} features, one core"
            body.append([what, f"{row['ratio']:.0f}", f"{row['signals_per_second']:,.0f} signals/s"])
    return grid(["what", "time, ratio", ""], body)


def newest(name: str, **wanted: str) -> dict[str, list[dict]]:
    """Returns a ledger's rows by setting, one for each seed; the last row of a seed that was run twice."""
    found = [row for row in rows(name) if all(row[key] == value for key, value in wanted.items())]
    return by_setting(found, lambda row: row["setting"].replace("learnt", "learned"))


def trap_table(what: str) -> str:
    """A line for each setting of ``benchmarks/trap.py``: mean and standard deviation over seeds."""
    keys = {"toy": {"probe": (2, 1)}, "fashion": {"probe": (1, 100), "probe_encoder": (1, 100)}}[what]
    body = []
    for setting, found in newest("trap", measurement=f"trap {what}").items():
        predicted = found[0]["predicted_variance"]
        cells = [f"{statistics.mean(row['std'] for row in found):.2g}", plus_minus([row["variance"] for row in found], 2)]
        cells += ["" if predicted is None else f"{predicted:.2f}", plus_minus([row["effective_rank"] for row in found], 1)]
        cells += [plus_minus([scale * row[key] for row in found], digits) for key, (digits, scale) in keys.items()]
        body.append([setting, *cells])
    last = {"toy": ["R² of the latent"], "fashion": ["probe, embedding, %", "probe, encoder, %"]}[what]
    return grid(["loss", "std", "mean variance", "predicted", "effective rank", *last], body)


def protocol_rows(data: str, components: bool = False) -> dict[str, list[dict]]:
    """Returns the rows of ledger ``joint`` on a set with the small encoder: of all objectives, or of ``gmje`` by K."""
    groups = newest("joint", data=data, encoder="small")
    return {setting: group for setting, group in groups.items() if setting.startswith("gmje, K = ") == components}


def joint_table(data: str) -> str:
    """A line for each setting of ``experiments/joint/run.py`` on a set: accuracy of the frozen encoder, and its controls."""
    body = []
    for setting, found in protocol_rows(data).items():
        cells = [plus_minus([100 * row[key] for row in found], 1) for key in ("knn", "probe")]
        rank = plus_minus([row["effective_rank"] for row in found], 1)
        body.append([f"{setting} (control)" if setting == "untrained" else setting, str(len(found)), *cells, rank])
        for name, values in {k: v for row in found for k, v in row["controls"].items()}.items():
            title = "pca, 256 components" if name == "pca" else name  # the only size that the first rows tried
            body.append([f"{title} (control)", "1", *(f"{100 * values[key]:.1f}" for key in ("knn", "probe")), ""])
    return grid(["objective", "seeds", "kNN (30), %", "linear probe, %", "effective rank of 32"], body)


def components_table(data: str) -> str:
    """A line for each number of components of ``gmje``; says so where it was not measured yet."""
    body = []
    groups = protocol_rows(data, components=True)
    for setting, found in sorted(groups.items(), key=lambda one: one[1][0]["options"]["components"]):
        cells = [plus_minus([100 * row[key] for row in found], 1) for key in ("knn", "probe")]
        cells += [plus_minus([row[f"{name}_coverage"] for row in found], 2) for name in ("own", "gaussian", "mixture")]
        body.append([setting.removeprefix("gmje, "), str(len(found)), *cells])
    head = ["components", "seeds", "kNN (30), %", "linear probe, %"]
    head += [f"coverage, {name}" for name in ("its own density", "a Gaussian afterwards", "a mixture afterwards")]
    return grid(head, body) if body else "Not measured yet."


SAMPLED = {
    "own": "its own density",
    "gaussian": "a Gaussian afterwards",
    "mixture": "a mixture afterwards, K = 10",
    "real": "held-out embeddings (limit)",
}


def sampling_table(data: str) -> str:
    """A line for each density of ``experiments/joint/run.py``: its samples, and those of densities fitted after training."""
    keys = {"mmd": 4, "wasserstein": 3, "precision": 2, "recall": 2, "coverage": 2}
    body = []
    for setting, found in protocol_rows(data).items():
        for name, label in SAMPLED.items():
            having = [row for row in found if f"{name}_mmd" in row]
            if setting != "untrained" and having and (name != "real" or setting == "gje"):
                cells = [plus_minus([row[f"{name}_{key}"] for row in having], digits) for key, digits in keys.items()]
                seeds = f" ({len(having)} seed)" if len(having) == 1 else ""
                body.append([setting, label + seeds, *cells])
    return grid(["objective", "samples of", "MMD²", "sliced Wasserstein", "precision", "recall", "coverage"], body)


def answers_table(data: str) -> str:
    """A line for each setting of ``benchmarks/halves.py`` on a set."""
    keys = {
        "nll_less_gaussian": (2, 1),
        "answers": (1, 1),
        "at_1": (1, 100),
        "at_5": (1, 100),
        "at_20": (1, 100),
        "pit_ks": (3, 1),
    }
    keys |= {"inside_50": (0, 100), "inside_90": (0, 100)}
    body = []
    for setting, found in newest("halves", data=data).items():
        cells = [plus_minus([scale * row[key] for row in found], digits) for key, (digits, scale) in keys.items()]
        body.append([setting, str(len(found)), *cells])
    head = [
        "objective",
        "seeds",
        "NLL less one Gaussian's",
        "components",
        "at 1, %",
        "at 5, %",
        "at 20, %",
        "PIT",
        "in 50 %",
        "in 90 %",
    ]
    return grid(head, body)


def pairs_recipes_table() -> str:
    """A line for each recipe: kNN of the demo, and the AUROC of mismatched pairs of each set; means over seeds."""
    found = by_setting(rows("pairs_recipes"), lambda row: (row["set"], row["pairs"], row["recipe"]))
    sets = list(dict.fromkeys((name, n) for name, n, _ in found))
    body = []
    for recipe in dict.fromkeys(recipe for _, _, recipe in found):
        demo = found[("demo", None, recipe)]
        cells = [plus_minus([row["knn30"]["z"] for row in demo], 1), plus_minus([row["detector_auroc"] for row in demo], 3)]
        for name, n in sets:
            values = [row["auroc"] for row in found.get((name, n, recipe), []) if row["auroc"] is not None]
            cells.append(plus_minus(values, 3) if values else "")
        body.append([f"`{recipe}`", str(len(demo)), *cells])
    of_sets = [name if n is None else f"{name}, {n:,} pairs" for name, n in sets]
    return grid(["recipe", "seeds", "demo: kNN (30), %", "demo: AUROC of the unseen digit", *of_sets], body)
