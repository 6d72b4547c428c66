"""Tables of densities on pairs: conditional models, samples, and the joint objectives; each reads its ledgers."""

import statistics
from functools import partial

from experiments.ledger import Row, by_setting, column, grid, plus_minus, rows

OVERLAP = {"precision": 2, "recall": 2, "coverage": 2}  # and the digits that are shown
SAMPLED = {
    "own": "its own density",
    "gaussian": "a Gaussian afterwards",
    "mixture": "a mixture afterwards, K = 10",
    "real": "held-out embeddings (limit)",
}


def branches_table(data: str) -> str:
    """A line for each model on a set of ``experiments/pairs/run.py``: mean and standard deviation over seeds, and the truth."""
    groups = by_setting([row for row in rows("branches") if row["data"] == data and "model" in row], lambda row: row["model"])
    branched = any(row["on_branch"] is not None for group in groups.values() for row in group)
    shares = ("on_branch", "covered", "inside_90") if branched else ("inside_90",)
    body = []
    for model, group in groups.items():
        cells = [column(group, "nll", 2), *(column(group, key, 0, 100) for key in shares), column(group, "pit_ks", 3)]
        body.append([model, *cells, f"{statistics.median(row['seconds'] for row in group):.2g}"])
    head = ["model", "NLL", *(["on a branch, %", "covered, %"] if branched else []), "inside 90 %, %", "PIT", "seconds"]
    if truth := column(next(iter(groups.values())), "truth", 2):
        body.append(["**the truth**", truth, *[""] * (len(head) - 2)])
    return grid(head, body)


def samples_table() -> str:
    """A line for each sampler on a set of ``experiments/pairs/run.py``."""
    groups = by_setting([row for row in rows("branches") if "sampler" in row], lambda row: (row["data"], row["sampler"]))
    digits, body = {"mmd": 4, "sliced_wasserstein": 3, **OVERLAP}, []
    for (data, sampler), group in groups.items():
        cells = [column(group, key, n) for key, n in digits.items()]
        body.append([data, sampler, *cells, column(group, "on_branch", 0, 100)])
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
            what = f"gmr / `condition`, {row['n']:,} queries, K = {row['k']}, {row['d']} features"
            note = f"{row['n'] / row['seconds']:,.0f} queries/s; means {row['apart']:.0e} apart"
            body.append([what, f"{row['ratio']:.0f}", note])
        elif name == "signals / s":
            what = f"plain Python / growing neural gas, {row['nodes']} nodes, {row['d']} features, one core"
            body.append([what, f"{row['ratio']:.0f}", f"{row['signals_per_second']:,.0f} signals/s"])
    return grid(["what", "time, ratio", ""], body)


def newest(name: str, **wanted: str) -> dict[str, list[Row]]:
    """Returns a ledger's rows by setting, one for each seed; the last row of a seed that was run twice."""
    measured = [row for row in rows(name) if all(row[key] == value for key, value in wanted.items())]
    return by_setting(measured, lambda row: row["setting"].replace("learnt", "learned"))


def trap_table(what: str) -> str:
    """A line for each setting of ``trap.py``: mean and standard deviation over seeds."""
    keys = {"toy": {"probe": (2, 1)}, "fashion": {"probe": (1, 100), "probe_encoder": (1, 100)}}[what]
    body = []
    for setting, group in newest("trap", measurement=f"trap {what}").items():
        predicted = group[0]["predicted_variance"]
        cells = [f"{statistics.mean(row['std'] for row in group):.2g}", column(group, "variance", 2)]
        cells += ["" if predicted is None else f"{predicted:.2f}", column(group, "effective_rank")]
        body.append([setting, *cells, *(column(group, key, digits, scale) for key, (digits, scale) in keys.items())])
    last = {"toy": ["R² of the latent"], "fashion": ["probe, embedding, %", "probe, encoder, %"]}[what]
    return grid(["loss", "std", "mean variance", "predicted", "effective rank", *last], body)


def protocol_rows(data: str, components: bool = False) -> dict[str, list[Row]]:
    """Returns the rows of ledger ``joint`` on a set with the small encoder: of all objectives, or of ``gmje`` by K."""
    groups = newest("joint", data=data, encoder="small")
    return {setting: group for setting, group in groups.items() if setting.startswith("gmje, K = ") == components}


def joint_table(data: str) -> str:
    """A line for each setting of ``experiments/joint/run.py`` on a set: accuracy of the frozen encoder, and its baselines."""
    body = []
    for setting, group in protocol_rows(data).items():
        cells = [column(group, "knn", 1, 100), column(group, "probe", 1, 100), column(group, "effective_rank")]
        body.append([f"{setting} (baseline)" if setting == "untrained" else setting, str(len(group)), *cells])
        for name, values in {k: v for row in group for k, v in row.get("baselines", {}).items()}.items():
            title = "pca, 256 components" if name == "pca" else name  # the only size that the first rows tried
            body.append([f"{title} (baseline)", "1", *(f"{100 * values[key]:.1f}" for key in ("knn", "probe")), ""])
    return grid(["objective", "seeds", "kNN (30), %", "linear probe, %", "effective rank of 32"], body)


def components_table(data: str) -> str:
    """A line for each number of components of ``gmje``."""
    body = []
    groups = protocol_rows(data, components=True)
    for setting, group in sorted(groups.items(), key=lambda pair: pair[1][0]["options"]["components"]):
        cells = [column(group, key, 1, 100) for key in ("knn", "probe")]
        cells += [column(group, f"{name}_coverage", 2) for name in ("own", "gaussian", "mixture")]
        body.append([setting.removeprefix("gmje, "), str(len(group)), *cells])
    head = ["components", "seeds", "kNN (30), %", "linear probe, %"]
    head += [f"coverage, {name}" for name in ("its own density", "a Gaussian afterwards", "a mixture afterwards")]
    return grid(head, body)


def sampling_table(data: str) -> str:
    """A line for each density of ``experiments/joint/run.py``: its samples, and those of densities fitted after training."""
    digits, body = {"mmd": 4, "wasserstein": 3, **OVERLAP}, []
    for setting, group in protocol_rows(data).items():
        for name, label in SAMPLED.items():
            having = [row for row in group if f"{name}_mmd" in row]
            if setting != "untrained" and having and (name != "real" or setting == "gje"):
                seeds = f" ({len(having)} seed)" if len(having) == 1 else ""
                body.append([setting, label + seeds, *(column(having, f"{name}_{key}", n) for key, n in digits.items())])
    return grid(["objective", "samples of", "MMD²", "sliced Wasserstein", "precision", "recall", "coverage"], body)


def answers_table(data: str) -> str:
    """A line for each setting of ``halves.py`` on a set."""
    keys = {"nll_less_gaussian": (2, 1), "answers": (1, 1), "at_1": (1, 100), "at_5": (1, 100), "at_20": (1, 100)}
    keys |= {"pit_ks": (3, 1), "inside_50": (0, 100), "inside_90": (0, 100)}
    body = []
    for setting, group in newest("halves", data=data).items():
        body.append([setting, str(len(group)), *(column(group, key, *how) for key, how in keys.items())])
    head = ["objective", "seeds", "NLL less one Gaussian's", "components", "at 1, %", "at 5, %", "at 20, %"]
    return grid([*head, "PIT", "in 50 %", "in 90 %"], body)


JUDGED = ("choose", "Gaussian process", "CatBoost", "NGBoost", "BayesianRidge")
PUBLISHED = {
    "concrete": (-2.94, -3.09),
    "energy": (-1.21, -0.62),
    "power-plant": (-2.81, -2.77),
    "wine-quality-red": (-0.93, -0.93),
    "yacht": (-1.25, -0.75),
}  # MC dropout, NGBoost


def judge_table() -> str:
    """A line for each method of ``experiments/pairs/judge.py`` on the tables of half B."""
    tables: dict[str, Row] = {}
    for row in rows("judge"):
        if row["set"] not in PUBLISHED:
            tables.setdefault(row["set"], {}).update(row)
    found = [row for row in tables.values() if all(name in row for name in JUDGED)]
    body = []
    for name in JUDGED:
        ratios = [row[name][1] / min(row[one][1] for one in JUDGED) for row in found]
        values = [statistics.geometric_mean(ratios), *(statistics.mean(row[name][k] for row in found) for k in (2, 3))]
        seconds = statistics.median(row[name][4] for row in found)
        body.append([name, f"{values[0]:.2f}", f"{values[1]:.3f}", f"{values[2]:.2f}", f"{seconds:.2g}"])
    return grid([f"{len(found)} tables", "CRPS to the best", "inside 90 %", "width, deviations", "CPU seconds, median"], body)


def uci_table() -> str:
    """A line for each table of UCI."""
    groups = by_setting([row for row in rows("judge") if row["set"] in PUBLISHED], lambda row: row["set"])
    body = []
    for name in sorted(groups):
        ours = [row["choose"][0] for row in groups[name]]
        both = [f"{value:.2f}" for value in PUBLISHED[name]]
        body.append([name, f"{statistics.mean(ours):.2f}", str(len(ours)), groups[name][0]["chosen"], *both])
    return grid(["table", "ours", "splits", "chosen", "MC dropout (published)", "NGBoost (published)"], body)


def pairs_recipes_table() -> str:
    """A line for each recipe: kNN of the demo, and the AUROC of mismatched pairs of each set; means over seeds."""
    groups = by_setting(rows("pairs_recipes"), lambda row: (row["set"], row["pairs"], row["recipe"]))
    sets = list(dict.fromkeys((name, n) for name, n, _ in groups))
    body = []
    for recipe in dict.fromkeys(recipe for _, _, recipe in groups):
        demo = groups[("demo", None, recipe)]
        cells = [plus_minus([row["knn30"]["z"] for row in demo], 1), column(demo, "detector_auroc", 3)]
        cells += [column(groups.get((name, n, recipe), []), "auroc", 3) for name, n in sets]
        body.append([f"`{recipe}`", str(len(demo)), *cells])
    of_sets = [name if n is None else f"{name}, {n:,} pairs" for name, n in sets]
    return grid(["recipe", "seeds", "digits: kNN (30), %", "digits: AUROC of the unseen digit", *of_sets], body)


def matches_table() -> str:
    """A line for each set and score of ``experiments/pairs/matches.py``."""
    body = []
    for row in rows("matches"):
        for name in ("density", "mixture", "cosine", "margin", "CSLS"):
            if name not in row:
                continue
            found = row[name]
            shares = [f"{100 * found[key]:.1f}" for key in ("first", "wrong", "power")]
            covered = f"{100 * found['covered']:.1f} ({found['candidates']:.0f})" if "covered" in found else ""
            body.append([f"{row['set']}, {row['pairs']:,} pairs", name, *shares, covered])
    head = [
        "pairs",
        "score",
        "match first, %",
        'wrong "no match", %',
        'right "no match", %',
        "candidates hold it, % (median number)",
    ]
    return grid(head, body)


TABLES = {
    "docs/guides/tables.md": {"judge": judge_table},
    "experiments/pairs/README.md": {"judge": judge_table, "uci": uci_table, "mixtures": mixtures_table},
    "docs/how-to/decide.md": {"matches": matches_table},
    "experiments/joint/measured.md": {
        "trap-toy": partial(trap_table, "toy"),
        "trap-fashion": partial(trap_table, "fashion"),
        **{f"joint-{data}": partial(joint_table, data) for data in ("fashion_mnist", "cifar10")},
        **{f"sampling-{data}": partial(sampling_table, data) for data in ("fashion_mnist", "cifar10")},
        **{f"answers-{data}": partial(answers_table, data) for data in ("mnist", "fashion_mnist", "cifar10")},
        **{f"components-{data}": partial(components_table, data) for data in ("fashion_mnist", "cifar10")},
        "pairs-recipes": pairs_recipes_table,
    },
    "experiments/pairs/branches.md": {
        **{name: partial(branches_table, name) for name in ("separated", "intersecting", "heteroscedastic", "arm", "halves")},
        "samples": samples_table,
    },
}
