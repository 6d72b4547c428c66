"""Tables of the advice before training, and of the linear problems behind it; each reads its ledger."""

import itertools
from collections import defaultdict
from functools import partial

from experiments.advice.alignment import ALPHAS, METHODS, NOISE, PANELS, PAPER, latest
from experiments.ledger import Row, grid, rows, share


def advice_rows() -> list[Row]:
    """The last advice and the last networks of each setting, in one row each."""
    found: dict[tuple, Row] = defaultdict(dict)
    for row in rows("advice"):
        found[row["data"], row["kind"], row["strength"], row["alignment"]] |= {k: v for k, v in row.items() if k != "what"}
    return [row for row in found.values() if "labels" in row and "networks" in row]


REFERENCES = {
    "closed_form": "the closed forms, held-out items",
    "networks": "trained networks (VICReg, denoising autoencoder)",
    "vje": "trained networks (VJE, denoising autoencoder)",
}


def agreement_table() -> str:
    """How often a verdict and its reference agree, where both are clear; constant answers are the baselines."""
    settings = advice_rows()
    bases = {
        "advice, with labels": lambda row: row["labels"]["verdict"],
        "advice, without labels": lambda row: row["spectrum"]["verdict"],
        "baseline: always joint embedding": lambda row: "joint_embedding",
        "baseline: always reconstruction": lambda row: "reconstruction",
    }
    body = []
    for reference, title in REFERENCES.items():
        clear = [row for row in settings if row[reference]["ahead"] != "tie"]
        for i, (name, verdict) in enumerate(bases.items()):
            given = [row for row in clear if verdict(row) != "cannot_tell"]
            agreed = sum(verdict(row) == row[reference]["ahead"] for row in given)
            rate = f"{100 * agreed / len(given):.0f} %" if given else "-"
            first = f"{title}: clear in {len(clear)} of {len(settings)} settings" if i == 0 else ""
            body.append([first, name, str(len(given)), str(agreed), rate])
    return grid(["held against", "answer", "verdicts given", "right", "rate"], body)


def features_table() -> str:
    """How often the advice with labels is right on the items' own numbers and on patch features, in the same settings."""
    settings = [row for row in advice_rows() if "patches" in row]
    titles = {"raw": "the items' own numbers", "patches": "patch features"}
    body = []
    for reference in ("networks", "vje"):
        clear = [row for row in settings if row[reference]["ahead"] != "tie"]
        for i, (name, title) in enumerate(titles.items()):
            given = [row for row in clear if row[name]["verdict"] != "cannot_tell"]
            agreed = sum(row[name]["verdict"] == row[reference]["ahead"] for row in given)
            first = f"{REFERENCES[reference]}: clear in {len(clear)} of {len(settings)} settings" if i == 0 else ""
            body.append([first, title, str(len(given)), str(agreed), share(agreed, len(given))])
    return grid(["held against", "advice with labels on", "verdicts given", "right", "rate (95 %)"], body)


def ties_table() -> str:
    """How often the advice cannot tell in settings without a clear difference."""
    settings = advice_rows()
    body = []
    for reference, title in REFERENCES.items():
        ties = [row for row in settings if row[reference]["ahead"] == "tie"]
        counts = [str(sum(row[basis]["verdict"] == "cannot_tell" for row in ties)) for basis in ("labels", "spectrum")]
        body.append([title, str(len(ties)), *counts])
    return grid(["no clear difference by", "settings", "cannot tell, with labels", "without"], body)


def failures_table() -> str:
    """Every setting in which the closed forms or the VICReg networks contradict a verdict with labels."""
    body = []
    short = {"joint_embedding": "JE", "reconstruction": "RC", "cannot_tell": "?", "tie": "tie"}
    for row in advice_rows():
        wrong = [
            name
            for name in ("closed_form", "networks")
            if {row["labels"]["verdict"], row[name]["ahead"]} == {"joint_embedding", "reconstruction"}
        ]
        if wrong:
            accuracies = [
                f"{100 * row[name]['joint_embedding']:.1f} / {100 * row[name]['reconstruction']:.1f}" for name in REFERENCES
            ]
            setting = [row["data"], row["kind"], f"{row['strength']:g}", f"{row['alignment']:g}"]
            verdict = f"{short[row['labels']['verdict']]} ({100 * row['labels']['margin']:+.1f})"
            body.append([*setting, verdict, short[row["spectrum"]["verdict"]], *accuracies])
    header = ["data", "noise", "strength", "alignment", "advice (margin, points)", "without labels"]
    return grid([*header, "closed forms, JE / RC", "VICReg / autoencoder", "VJE / autoencoder"], body)


def overlap_table() -> str:
    """Which method was ahead for each range of overlaps, over all settings and numbers of components."""
    found = [one for row in advice_rows() for one in row["components"]]
    body = []
    for low, high in ((0.0, 0.3), (0.3, 0.6), (0.6, 0.9), (0.9, 0.97), (0.97, 1.01)):
        here = [one for one in found if low <= one["overlap"] < high]
        bounds = [one.get("interval", [one["margin"]] * 2) for one in here]  # rows of later runs have one interval, at k
        outside = [not below <= 0 <= above for below, above in bounds]
        clear = [one for one, is_outside in zip(here, outside, strict=True) if is_outside and abs(one["margin"]) >= 0.005]
        ahead = sum(one["margin"] > 0 for one in clear)
        counts = [len(here), ahead, len(clear) - ahead, len(here) - len(clear)]
        largest = max((abs(one["margin"]) for one in here), default=0.0)
        body.append([f"{low:g} to {min(high, 1):g}", *map(str, counts), f"{100 * largest:.1f}"])
    header = ["overlap", "problems", "joint embedding ahead", "reconstruction ahead", "not clear", "largest difference, points"]
    return grid(header, body)


def linear_table() -> str:
    """The last row of each measurement of the linear estimators."""
    body = []
    last = {row.get("way", row["measurement"]): row for row in rows("linear")}
    for name, row in last.items():
        if name == "fit / X'X":
            what = f"`JointEmbedding.fit` / bare blocked X'X, {row['n']:,} x {row['d']} float32 on disk"
            body.append([what, f"{row['ratio']:.2f}", f"peak memory {row['peak_mib']:.0f} MiB"])
        elif name == "advise":
            what = f"advice on {row['n']:,} CIFAR-10 images / sampling four views of each"
            body.append([what, f"{row['ratio']:.1f}", f"{row['seconds']:.0f} s"])
        else:
            against = f" / {row['against']}" if row.get("against", name) != name else ""
            what = f"{name}{against}: {row['n']:,} x {row['d']}, k = {row['k']}"
            body.append([what, f"{row['ratio']:.1f}", f"sine of the angle to the population's solution {row['sine']:.3f}"])
    return grid(["what", "time, ratio", ""], body)


SHOWN = {100: "n = 100", 800: "800", 12800: "12,800", 51200: "51,200"}  # items


def number(value: float | None) -> str:
    """Returns 2.8e-2 for 0.028."""
    if value is None:
        return "-"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def at(row: Row, n: int) -> float | None:
    return row["mean"][row["n"].index(n)] if n in row["n"] else None


def distances_table(dataset: str) -> str:
    """A data set's distances; on MNIST next to the paper's values, with the ratio to them."""
    body, found = [], latest()
    for (noise, method), alpha in itertools.product(PANELS, ALPHAS):
        if row := found.get((dataset, method, noise, alpha)):
            cells = [number(at(row, n)) for n in SHOWN]
            if dataset == "mnist":
                pairs = zip(cells, SHOWN, PAPER[method, noise, alpha], strict=True)
                cells = [f"{cell} / {number(p)} ({at(row, n) / p:#.2g})" for cell, n, p in pairs]
            t = row.get("threshold")
            above = "every α" if t is None else f"{round(t['above'] * t['draws'])} of {t['draws']}"
            body.append([noise, METHODS[method].lower(), f"{alpha:g}", above, *cells])
    return grid(["noise", "method", "α", "α² above threshold", *SHOWN.values()], body)


def thresholds_table() -> str:
    """One line a (data set, noise, method): the spread over many draws, and the share of them that each alpha satisfies."""
    body, found = [], latest()
    for (dataset, method, noise, alpha), row in found.items():
        if row.get("threshold") and alpha == ALPHAS[0]:
            t = row["threshold_of_many_draws"]
            above = [found[dataset, method, noise, a]["threshold_of_many_draws"]["above"] for a in ALPHAS]
            spread = f"{t['median']:.3g} [{t['q05']:.3g}, {t['q95']:.3g}]"
            body.append([dataset, noise, METHODS[method].lower(), spread, *(f"{100 * part:.0f} %" for part in above)])
    return grid(["data", "noise", "method", "threshold on α²: median [5–95 %]", *(f"α = {a:g}" for a in ALPHAS)], body)


def left_table() -> str:
    """The reconstruction panels on MNIST: theorem 3.1, the left singular vectors, and the paper's figure."""
    body, found = [], latest()
    for noise, alpha in itertools.product(NOISE, ALPHAS):
        pair = [found["mnist", method, noise, alpha] for method in ("reconstruction", "left_singular_vectors")]
        of_paper = zip(SHOWN, PAPER["reconstruction", noise, alpha], strict=True)
        cells = [" / ".join(map(number, (*(at(row, n) for row in pair), paper))) for n, paper in of_paper]
        body.append([noise, f"{alpha:g}", *cells])
    return grid(["noise", "α", *SHOWN.values()], body)


CANDIDATES = ("as_they_are", "frozen", "closed_form", "joint_embedding", "reconstruction")


def latest_choices() -> list[Row]:
    """The last row of each data set and kind of views."""
    return list({(row["data"], row.get("views", "features")): row for row in rows("choices")}.values())


def choices_table() -> str:
    """Accuracy by neighbors of every candidate on every set."""
    body = []
    for row in [row for row in latest_choices() if row.get("views", "features") == "features"]:
        found = {trial["kind"]: trial for trial in row["trials"]}
        knn = [f"{100 * found[kind]['knn']:.1f}" if kind in found else "" for kind in CANDIDATES]
        body.append([f"`{row['data']}`", *knn])
    heads = ("as they are", "frozen network", "closed form", "network, joint embedding", "network, reconstruction")
    return grid(["data", *heads], body)


def candidates_table() -> str:
    """Everything about every candidate."""
    body = []
    for row in latest_choices():
        for trial in row["trials"]:
            numbers = [
                f"{trial[key]:.3f}" if key == "rank_error" else f"{trial[key]:.0f}"
                for key in ("rank_error", "effective_rank", "lidar")
            ]
            accuracies = [f"{100 * trial[key]:.1f}" for key in ("knn", "probe")]
            made = [str(trial["items"]), str(trial["epochs"]), f"{trial['seconds']:.0f}"]
            body.append(
                [f"`{row['data']}`", row.get("views", "features"), trial["kind"].replace("_", " "), *made, *numbers, *accuracies]
            )
    return grid(["data", "views", "candidate", "items", "epochs", "s", "re", "er", "LiDAR", "kNN", "probe"], body)


def marks_table() -> str:
    """How many planted marks were named, and in how many clean parts one was."""
    found = [row for row in rows("planted") if row["what"] == "named"]
    body = []
    for kind in sorted({row["kind"] for row in found} - {"none"}):
        cases = [row for row in found if row["kind"] == kind]
        body.append(
            [kind, str(len(cases)), str(sum(row["named"] for row in cases)), str(sum(row["others"] > 0 for row in cases))]
        )
    for title, halves in (("clean, halves 0 and 1", (0, 1)), ("clean, halves 2 and 3", (2, 3))):
        cases = [row for row in found if row["kind"] == "none" and row["half"] in halves]
        body.append([title, str(len(cases)), "", str(sum(row["others"] > 0 for row in cases))])
    return grid(["mark", "cases", "named", "cases with another place named"], body)


def harm_table() -> str:
    """Accuracy by neighbors without a mark, with one that the views share, and with one that they vary."""
    found = [row for row in rows("planted") if row["what"] == "harmed"]
    body = [[f"`{row['data']}`", row["method"], *(f"{row[how]:.1f}" for how in ("clean", "shared", "varied"))] for row in found]
    return grid(["data", "method", "clean", "shared", "varied"], body)


TABLES = {
    "experiments/advice/README.md": {
        "linear": linear_table,
        "choices": choices_table,
        "candidates": candidates_table,
        "marks": marks_table,
        "harm": harm_table,
        "agreement": agreement_table,
        "ties": ties_table,
        "overlaps": overlap_table,
        "failures": failures_table,
        "features": features_table,
    },
    "experiments/advice/alignment.md": {
        "alignment": partial(distances_table, "mnist"),
        "fashion_mnist": partial(distances_table, "fashion_mnist"),
        "thresholds": thresholds_table,
        "left": left_table,
    },
}
