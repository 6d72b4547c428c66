"""Generates the tables of the README and the docs from the ledger (``benchmarks/results/*.jsonl``).

python benchmarks/tables.py            # writes them
python benchmarks/tables.py --check    # exits with 1 if a page disagrees with the ledger
"""

import functools
import importlib
import json
import math
import re
import statistics
import sys
import types
from collections import defaultdict

import calibration_tables
import corruption_tables
import detection_tables
import methods_tables
import one_class_tables
from ledger import ROOT, by_setting, plus_minus, rows

from vergence import methods, objectives

CONTROLS = ("untrained", "pixels", "pca")
COSTS = {"cpu_seconds": 0, "embed_cpu_milliseconds": 2}  # and their digits
BUSY = "busy machine"  # how the note of a row begins whose times are not comparable


def grid(header: list[str], body: list[list[str]]) -> str:
    """Returns a Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *body])


def spread(values: list[float]) -> str:
    """Returns mean and standard deviation over seeds, in percent; the number of seeds is in the table."""
    return plus_minus([100 * v for v in values], 1)


def objectives_table() -> str:
    """A line for each objective and method on images: title and source from its docstring, and how it was tested."""
    trained = {row["config"]["model"]["objective"] for row in rows("training")} | {row["objective"] for row in rows("joint")}
    trained |= {row["method"] for row in rows("methods")}
    body = []
    for folder, option in ((objectives, "--objective"), (methods, "--method")):
        for name in folder.names():
            text = importlib.import_module(f"{folder.__name__}.{name}").__doc__
            title = re.split(r" \(|:|, arXiv", text.splitlines()[0])[0].rstrip(".")
            paper = re.search(r"arXiv:\d{4}\.\d{4,5}( version \d)?|ICML\s\d{4}", text)
            tested = (ROOT / "tests" / folder.__name__.split(".")[1] / f"test_{name}.py").exists()
            state = "not tested" if not tested else "tested, measured on real data" if name in trained else "tested"
            body.append([f"`{name}`", f"`{option}`", title, " ".join(paper[0].split()) if paper else "", state])
    return grid(["name", "option", "what", "source", "status"], body)


def training_table() -> str:
    """A line for each setting and representation: mean and standard deviation over seeds."""

    def setting(row: dict) -> tuple:
        config = row["config"]
        return row["data"], row["recipe"], row["n_train"], config["fit"]["epochs"], json.dumps(config["data"].get("keep_classes"))

    body = []
    for (data, recipe, n, epochs, _), group in by_setting(rows("training"), setting).items():
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
        what["bench score"] = "`vergence score` / bare forward pass, processor time"
        setting = f"{row['encoder']}, {row['size']} px, batch {row['batch_size']}, {row['precision']}"
        body.append([what[row["measurement"]], setting, f"{row['ratio']:.2f}", f"`vergence {row['measurement']}`"])
    peers = peer_rows()
    same = ("method", "encoder", "precision", "device", "peer")
    for row in {tuple(row[key] for key in same): row for row in sorted(peers, key=trained_images)}.values():
        what = f"training here / with {row['peer']}, `{row['method']}`"
        setting = f"{row['encoder']}, 32 px, batch {row['batch_size']}, {row['precision']}; {timed(row)}"
        body.append([what, setting, bounded(row["ratio"]), "`benchmarks/peers.py`"])
    for row in rows("lightly"):  # of a script that `peers.py` has replaced
        if row["encoder"] not in {one["encoder"] for one in peers}:
            ours, theirs = (
                ", ".join(row[k] for k in (f"{who}_precision", f"{who}_layout") if k in row) for who in ("our", "their")
            )
            setting = f"{row['encoder']}, 32 px, batch {row['batch_size']}; {ours} / {theirs}"
            what = "VJE's training loop / lightly's SimCLR loop, not like for like"
            body.append([what, setting, f"{row['ratio']:.2f}", "a script since replaced by `benchmarks/peers.py`"])
    return grid(["what", "setting", "ratio", "command"], body)


def peer_rows() -> list[dict]:
    """The last row of ``benchmarks/peers.py`` for each setting and peer; one measured on an idle machine where there is one."""
    found = sorted((row for row in rows("peers") if row["method"]), key=lambda row: not row["note"].startswith(BUSY))
    same = ("method", "encoder", "precision", "epochs", "device", "peer")  # more images replace fewer
    return list({tuple(row[key] for key in same): row for row in found}.values())


def trained_images(row: dict) -> int:
    """Returns how many images a row's trainings saw."""
    return row["n_train"] * row["epochs"]


def timed(row: dict) -> str:
    """Returns which time a row's rates are by."""
    return "by processor time" if row["clock"] == "processor" else "by the wall clock"


def bounded(ratio: list[float | None]) -> str:
    """Returns a ratio with its interval, where there is one."""
    return f"{ratio[0]:.2f}" + (f" ({ratio[1]:.2f} to {ratio[2]:.2f})" if ratio[1] is not None else "")


def peers_table() -> str:
    """Lines of ``benchmarks/peers.py``: this library, then each peer, of each setting; what does not install says why."""
    groups: dict[tuple, list[dict]] = defaultdict(list)
    for row in peer_rows():
        groups[tuple(row[key] for key in ("method", "encoder", "precision", "n_train", "epochs", "batch_size"))].append(row)
    body = []
    for (method, encoder, precision, n, epochs, batch), found in groups.items():
        setting = f"`{method}`, {encoder}, {precision}, {n:,} x {epochs}, batch {batch}, {timed(found[-1])}"
        sides = [("**vergence**", found[-1]["here"], "", "")]
        sides += [(row["peer"], row["there"], bounded(row["ratio"]), bounded(row["seconds_ratio"])) for row in found]
        for i, (name, one, ratio, seconds) in enumerate(sides):
            knn = plus_minus([curve[-1] for curve in one["knn"]], 1)
            size = f"{one['packages']} ({one['packages_without_gpu']})"
            cells = [f"{one['images_per_second']:.0f}", ratio, knn, seconds, f"{one['start']:.1f}", str(one["peak_mib"])]
            body.append([setting if i == 0 else "", name, *cells, f"{one['import_seconds']:.1f}", size, str(one["lines"])])
    for name in dict.fromkeys(row["peer"] for row in rows("peers") if not row["method"]):
        body.append(["", name, "does not install", *[""] * 8])
    head = ["setting, images x epochs", "library", "images/s", "ratio (95 %)", "kNN (30), %", "time to equal kNN, ratio (95 %)"]
    head += ["start, s", "peak memory, MiB", "import, s", "packages (without GPU's)", "lines"]
    return grid(head, body) if groups else "Not measured yet."


def advice_rows() -> list[dict]:
    """The last advice and the last networks of each setting, in one row each."""
    found: dict[tuple, dict] = defaultdict(dict)
    for row in rows("advice"):
        found[row["data"], row["kind"], row["strength"], row["alignment"]] |= {k: v for k, v in row.items() if k != "what"}
    return [row for row in found.values() if "labels" in row and "networks" in row]


REFERENCES = {
    "closed_form": "the closed forms, held-out items",
    "networks": "trained networks (VICReg, denoising autoencoder)",
    "vje": "trained networks (VJE, denoising autoencoder)",
}


def agreement_table() -> str:
    """How often a verdict and its reference agree, where both are clear; constant answers are the controls."""
    settings = advice_rows()
    bases = {
        "advice, with labels": lambda row: row["labels"]["verdict"],
        "advice, without labels": lambda row: row["spectrum"]["verdict"],
        "control: always joint embedding": lambda row: "joint_embedding",
        "control: always reconstruction": lambda row: "reconstruction",
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
            body.append([first, title, str(len(given)), str(agreed), corruption_tables.share(agreed, len(given))])
    return grid(["held against", "advice with labels on", "verdicts given", "right", "rate (95 %)"], body)


def uncertainty_rows() -> dict[str, list[dict]]:
    """Returns the rows of ``benchmarks/uncertainty.py`` by encoder, one for each seed: the last one."""
    return by_setting(rows("uncertainty"), lambda row: row["encoder"])


def uncertainty_table(what: str) -> str:
    """A line for each uncertainty, a column for each encoder: R-AUROC, or the mean AUROC of foreign images."""
    groups = uncertainty_rows()
    names = list(dict.fromkeys(name for group in groups.values() for row in group for name in row["scores"]))

    def value(row: dict, name: str) -> float | None:
        if what != "foreign":
            return row["scores"].get(name, {}).get(what)
        found = [scores[name] for scores in row["foreign"].values() if name in scores]
        return statistics.mean(found) if found else None

    body = []
    tops = {"r_auroc": {"R@1": "recall_at_1", "R@1, mean of 8 views": "recall_at_1_crops"}}
    tops["r_auroc_equalized"] = {"R@1, equalized": "recall_at_1_equalized"}
    for title, key in tops.get(what, {}).items():
        body.append([f"*{title}*", *(plus_minus([row[key] for row in group], 3) for group in groups.values())])
    for name in names:
        found = [[v for v in (value(row, name) for row in group) if v is not None] for group in groups.values()]
        one = next(row["scores"][name] for group in groups.values() for row in group if name in row["scores"])
        kind = "" if one["kind"] == "model" else " (control, labels)" if one["labels"] else " (control)"
        if any(found):
            body.append([name + kind, *(plus_minus(values, 3) if values else "" for values in found)])
    return grid(["", *groups], body)


def degradations_table() -> str:
    """A line for each uncertainty and encoder that has one: rank correlations with the strength of each degradation."""
    kinds, body = ("crop", "blur", "noise", "occlusion"), []
    for encoder, group in uncertainty_rows().items():
        for name, one in group[0]["scores"].items():
            if one["strengths"]:
                values = [[row["scores"][name]["strengths"][kind] for row in group] for kind in kinds]
                body.append([encoder, name, *(plus_minus(v, 2) for v in values)])
    return grid(["encoder", "uncertainty", *kinds], body)


def predictive_table() -> str:
    """A line for each encoder with a density: calibration of p(z_b | z_a) on held-out pairs of views."""
    keys = {"log_prob": 1, "pit_ks": 3, "inside_50": 3, "inside_90": 3, "region_50": 3, "region_90": 3, "energy_score": 2}
    keys |= {"elbo": 1, "gap": 1, "effective_samples": 1}
    body = []
    for encoder, group in uncertainty_rows().items():
        found = [row["predictive"] for row in group if row["predictive"] is not None]
        if found:
            values = {key: [one[key] for one in found if one[key] is not None] for key in keys}
            body.append([encoder, *(plus_minus(v, keys[key]) if v else "" for key, v in values.items())])
    head = ["log-density, nats", "PIT distance", "in 50 %", "in 90 %", "in the 50 % region", "in the 90 % region", "energy score"]
    return grid(["encoder", *head, "ELBO, nats", "log marginal less ELBO", "effective samples of 64"], body)


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
        clear = [one for one in here if abs(one["margin"]) >= 0.005 and not one["interval"][0] <= 0 <= one["interval"][1]]
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


def branches_table(data: str) -> str:
    """A line for each model on a set of ``benchmarks/branches.py``: mean and standard deviation over seeds, and the truth."""
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
    """A line for each sampler on a set of ``benchmarks/branches.py``."""
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
    """Returns the rows of ``benchmarks/joint.py`` on a set with the small encoder: of all objectives, or of ``gmje`` by K."""
    groups = newest("joint", data=data, encoder="small")
    return {setting: group for setting, group in groups.items() if setting.startswith("gmje, K = ") == components}


def joint_table(data: str) -> str:
    """A line for each setting of ``benchmarks/joint.py`` on a set: accuracy of the frozen encoder, and its controls."""
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
    """A line for each density of ``benchmarks/joint.py``: its samples, and those of densities fitted after training."""
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


def cost_table() -> str:
    """The last row of each width of ``vergence bench objective``."""
    last = {(row["encoder"], row["batch_size"], row["dim"], row["device"]): row for row in rows("objectives")}
    names = sorted({name for row in last.values() for name in row["share"]})
    body = [[f"`{name}`", *(f"{100 * row['share'].get(name, math.nan):.2f}" for row in last.values())] for name in names]
    head = [f"{e}, batch {b}, D = {d}, % of a step" for e, b, d, _ in last]
    rounds = [f"{row['rounds']} at {row['commit']}" for row in last.values()]
    return grid(["objective", *head], [*body, ["rounds, commit", *rounds]])


def recipe_costs_table() -> str:
    """Lines of ``recipe_costs.py``, of the last row of each recipe."""
    body = []
    for name, row in sorted({row["recipe"]: row for row in rows("recipe_costs")}.items()):
        seen = f"{row['items']:,} x {row['epochs']:,} at {row['size']} px"
        hours = float(f"{row['hours']:.2g}")
        body.append(
            [
                f"`{name}`",
                seen,
                f"{row['gflop']:.1f}",
                f"{row['exaflop']:.2g}",
                f"{hours:,.2g}" if hours < 10 else f"{hours:,.0f}",
            ]
        )
    head = [
        "recipe",
        "images x epochs",
        "operations an image and epoch, 10^9",
        "operations of the training, 10^18",
        "hours at 50 TFLOP/s",
    ]
    return grid(head, body)


def best_control(lines: list[dict]) -> str:
    """Returns the mean AUROC of the control that is best on average over seeds, and its name; nothing where none was measured."""
    measured = [row["controls"] for row in lines if "controls" in row]
    if not measured:
        return ""
    means = {name: statistics.mean(one[name] for one in measured) for name in measured[0]}
    name = max(means, key=means.__getitem__)
    return f"{means[name]:.4f} ({name})"


def folder_table() -> str:
    """Lines of ``folder.py``: means over the seeds of the last row of each setting."""
    last = {(row["kind"], row["share"], row["seed"]): row for row in rows("folder") if row["n"] in (600, 3000)}
    found = defaultdict(list)
    for (kind, share, _), row in last.items():
        found[share, kind].append(row)
    body = []
    for (share, kind), lines in sorted(found.items(), key=lambda one: (one[0][1] == "cells", one[0])):

        def mean(name: str, digits: int = 0, lines: list = lines) -> str:
            return f"{statistics.mean(row[name] for row in lines):.{digits}f}"

        cells = kind == "cells"
        what = f"{100 * share:g} % {kind}" if share else "photographs alone"
        if cells:
            what = f"tiles of blood cells, {100 * share:g} % altered" if share else "tiles of blood cells alone"
        ranked = ["", "", ""]
        if share:
            ranked = [mean("auroc", 4), best_control(lines), f"{100 * float(mean('precision', 4)):.0f} %"]
        groups = f"{mean('grouped_odd')} and {mean('grouped_others')}"
        body.append([what, str(len(lines)), *ranked, f"{mean('flagged_odd')} and {mean('flagged_others')}", groups])
    head = [
        "planted",
        "seeds",
        "AUROC",
        "AUROC of the best control",
        "oddities among as many first items",
        "flagged: oddities and others",
        "in groups: oddities and others",
    ]
    return grid(head, body)


def findings_table() -> str:
    """Lines of ``folder_findings.py``, of the last row of each seed."""
    last = {
        (row["part"], row.get("kind") or row.get("folder") or row.get("flag"), row["seed"]): row
        for row in rows("folder_findings")
    }
    found = defaultdict(list)
    for (part, what, _), row in last.items():
        found[part, what].append(row)

    def mean(key: tuple, field: str, digits: int = 0) -> str:
        return f"{statistics.mean(row[field] for row in found[key]):.{digits}f}"

    body = []
    for kind in ("digits", "clothes", "noise"):
        key = ("groups", kind)
        others = f"{statistics.mean(row['members'] - row['found'] for row in found[key]):.0f}"
        body.append([f"odd groups: 60 {kind} among 3,000", f"{mean(key, 'found')} found", f"{others} photographs besides"])
    body.append(["odd groups: photographs alone", f"{mean(('groups', 'none'), 'groups', 1)} groups", ""])
    named = {"duplicates": "near-duplicates: 100 copies among 5,000", "planted": "leaks: 150 copies of 5,000 among 1,000 others"}
    for key in ((part, None) for part in named):
        hows = [how for how in ("JPEG", "resized", "brighter", "mirrored", "turned", "shifted") if how in found[key][-1]]
        kinds = ", ".join(f"{how} {100 * statistics.mean(row[how] for row in found[key]):.0f} %" for how in hows)
        body.append([named[key[0]], f"{mean(key, 'found')} found ({kinds})", f"{mean(key, 'others')} other pairs"])
    for (part, size), lines in found.items():
        if part == "bursts":
            share = statistics.mean(row["found"] / row["photographs"] for row in lines)
            mixed = statistics.mean(row["mixed"] / row["items"] for row in lines)
            what = f"copies: {lines[-1]['photographs']:,} photographs, {size - 1} of each"
            body.append([what, f"{100 * share:.0f} % with all of their own", f"{100 * mixed:.1f} % of images with another's"])
    (leak,) = found["leaks", None]
    body.append(["leaks: CIFAR-10 test in CIFAR-100", f"{leak['count']} pair", ""])
    for (part, what), lines in found.items():
        if part == "flags":
            shares = {name: lines[-1][name] for name in ("dark", "light", "blurry", "low_information", "grayscale")}
            shown = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items() if share > 0)
            body.append([f"flags: {what}, {lines[-1]['items']:,} images", shown or "none", ""])
        if part == "spoiled":
            body.append([f"flags: 100 images made {what}", f"{100 * lines[-1]['found']:.0f} % found", ""])
    return grid(["what", "result", ""], body)


def two_cores_table() -> str:
    """Lines of ``two_cores.py`` for each data set and number of images: the newest default and its controls, over its seeds.

    Processor seconds and milliseconds are medians over seeds, memory is the largest, with that of the libraries.
    """
    defaults = [row for row in rows("two_cores") if not {"--encoder", "--set", "--curve"} & set(row.get("command", "").split())]
    newest = {(row["data"], row["limit"]): row["encoder"] for row in defaults}
    shown = [row for row in rows("two_cores") if row["encoder"] == newest.get((row["data"], row["limit"]))]
    body = []
    for (data, limit), seeds in sorted(by_setting(shown, lambda row: (row["data"], row["limit"])).items()):
        for name, label in (("", "**patches**"), ("pixels_", "pixels (control)"), ("pca_", "pca (control)")):
            shares = [spread([row[f"{name}{kind}"] / 100 for row in seeds]) for kind in ("knn30", "probe")]
            own = [] if name else seeds
            rank = spread([row["effective_rank"] / 100 for row in own]) if own else ""
            used = [f"{statistics.median(row['cpu_seconds'] for row in own):.0f}"] if own else [""]
            used += [f"{statistics.median(row['embed_cpu_milliseconds'] for row in own):.1f}"] if own else [""]
            used += [f"{max(row['fit_peak_mib'] for row in own):,}"] if own else [""]
            first = ["", "", ""] if name else [data, f"{limit:,}", str(len(seeds))]
            body.append([*first, label, *shares, rank, *used])
        if (data, limit) == ("cifar10", 10_000):
            body += beside_two_cores()
    head = ["data", "items", "seeds", "representation", "kNN (30), %", "linear probe, %", "effective rank"]
    return grid([*head, "whole run, processor s", "an image, processor ms", "peak memory, MiB"], body)


BESIDE = ("contrastive", "vje", "distilled_vje", "patches_contrastive", "patches_vje")  # docs/trained.md has the others


def beside_two_cores() -> list[list[str]]:
    """Lines for 10,000 images of CIFAR-10: networks from random weights, after the closed form, and trained on ImageNet."""
    of = [row for row in rows("two_cores") if (row["data"], row["limit"], row["encoder"]) == ("cifar10", 10_000, "small")]
    networks = {row["objective"]: row for row in of if not row.get("distill") and row["objective"] in BESIDE}
    body = []
    for name, row in sorted(networks.items(), key=lambda pair: -pair[1]["knn30"]):
        numbers = [f"{row['knn30']:.1f}", f"{row['probe']:.1f}", f"{row['effective_rank']:.1f}", f"{row['cpu_seconds']:.0f}"]
        costs = [f"{row['embed_cpu_milliseconds']:.1f}", f"{row['fit_peak_mib']:,}"]
        body.append([f"small network, `{name}`, {row['epochs']} epochs, one seed", *numbers, *costs])
    for row in list(networks.values())[:1]:
        untrained = [f"{row['untrained_knn30']:.1f}", f"{row['untrained_probe']:.1f}"]
        body.append(["the same network untrained (control)", *untrained, *4 * [""]])
    settings = [("cifar10", 10_000, name) for name in BESIDE]
    behind = [row for row in rows("trained") if (row["data"], row["limit"], row["recipe"]) in settings]
    for name, own in sorted(by_setting(behind, lambda row: row["recipe"]).items()):
        shares = [
            spread([row[kind] / 100 for row in own]) if kind in own[-1] else "" for kind in ("knn30", "probe", "effective_rank")
        ]
        seconds = statistics.median(row.get("cpu_seconds", row["seconds"]) for row in own)  # older rows: by the wall clock
        costs = [f"{seconds:.0f}", "", ""]
        if "probe" in own[-1]:
            milliseconds = statistics.median(row["embed_cpu_milliseconds"] for row in own)
            costs[1:] = [f"{milliseconds:.1f}", f"{max(row['fit_peak_mib'] for row in own):,}"]
        body.append([f"`{name}`, {'one seed' if len(own) == 1 else f'{len(own)} seeds'}", *shares, *costs])
    frozen = [row for row in rows("pretrained") if row["data"] == "cifar10" and row["size"] == 96 and row["train"] == 10_000]
    body += [["frozen ImageNet network at 96 pixels (control)", f"{row['knn']['z']['30']:.1f}", *5 * [""]] for row in frozen[-1:]]
    return [["", "", "", *line] for line in body]


RANKED = ("knn30", "probe", "effective_rank")


def distilled_table() -> str:
    """A line for each data set, number of images and recipe of networks that learned a closed form; the last row of each seed."""
    learned = [row for row in rows("trained") if row.get("distill")]
    found = by_setting(learned, lambda row: (row["data"], row["limit"], row["recipe"]))
    body = []
    for (data, limit, recipe), own in sorted(found.items(), key=lambda pair: (*pair[0][:2], -pair[1][0]["knn30"])):
        shares = [spread([row[kind] / 100 for row in own]) for kind in ("knn30", "probe", "control_knn30", "effective_rank")]
        copies = statistics.median(row["duplicates_of_40"] for row in own)
        costs = [f"{statistics.median(row[kind] for row in own):.{digits}f}" for kind, digits in COSTS.items()]
        body.append([data, f"{limit:,}", f"`{recipe}`", str(len(own)), *shares, f"{copies:.0f} of 40", *costs])
    head = ["data", "items", "recipe", "seeds", "kNN (30), %", "linear probe, %", "closed form, kNN", "effective rank"]
    return grid([*head, "duplicates", "whole run, processor s", "an image, processor ms"], body)


def from_random_table() -> str:
    """A line for each variant of networks from random weights, columns for the objectives: means over seeds."""
    found = by_setting(rows("from_random"), lambda row: (row["variant"], row["objective"]))
    names = list(dict.fromkeys(objective for _, objective in found))
    body = []
    for variant in dict.fromkeys(variant for variant, _ in found):
        own = [found.get((variant, objective), []) for objective in names]
        epochs = str(own[0][0]["trained_epochs"])
        seconds = statistics.median(row["cpu_seconds"] for group in own for row in group)
        cells = [" / ".join(plus_minus([row[kind] for row in group], 1) for kind in RANKED) if group else "" for group in own]
        body.append([f"`{variant}`", epochs, f"{seconds:.0f}", *cells])
    return grid(["variant", "epochs", "processor s", *(f"`{name}`: kNN / probe / effective rank" for name in names)], body)


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


def pretrained_table() -> str:
    """A line for each data set and size of images: kNN on frozen ImageNet features and on controls, the newest row."""
    body = []
    for (data, size), row in sorted({(row["data"], row["size"]): row for row in rows("pretrained") if "knn" in row}.items()):
        shares = [" / ".join(f"{row['knn'][kind][k]:.1f}" for k in ("5", "30")) for kind in ("z", *CONTROLS)]
        body.append([data, str(size), f"{row['train']:,} / {row['test']:,}", *shares])
    head = ["data", "pixels", "items, train / test", "frozen", "untrained", "pixel values", "their components"]
    return grid(head, body)


def duplicates_table() -> str:
    """A line for each size of images: copies of photographs whose original is the nearest of all, the newest row of each."""
    body = []
    for size, row in sorted({row["size"]: row for row in rows("pretrained") if "first" in row}.items()):
        body.append([str(size), str(row["copies"]), *(str(row["first"][kind]) for kind in ("z", *CONTROLS))])
    return grid(["pixels", "copies", "frozen", "untrained", "pixel values", "their components"], body)


def summary(module: types.ModuleType, name: str, **settings: str) -> str:
    """A summary of ``NAME_tables`` of the ledger NAME; says so where nothing was measured yet."""
    header, body = getattr(module, name)(rows(module.__name__.removesuffix("_tables")), **settings)
    return grid(header, body) if body else "Not measured yet."


corruption_table = functools.partial(summary, corruption_tables)


def notes_table() -> str:
    """A line for each note on old rows."""
    body = []
    for one in rows("notes"):
        lines = ", ".join(f"{first} to {last}" if last > first else str(first) for first, last in one["lines"])
        body.append([f"`{one['ledger']}.jsonl`", lines, one["note"]])
    return grid(["ledger", "lines", "note"], body)


DEFAULT = "default 5"  # name of today's default detector in the ledger
FOREIGN = {  # columns of the tables of out-of-distribution detection
    "cifar10": ("cifar100", "omniglot", "inverted", "fashion_mnist", "mnist", "noise", "blurred"),
    "fashion_mnist": ("mnist", "omniglot", "cifar10", "noise", "blurred", "inverted"),
}


def foreign_rows(data: str, peers: bool = False) -> list[dict]:
    """The last row of each encoder, level and detector of our own, or with ``peers`` of all, on a set, with means over its seeds.

    ``seeds`` has the mean AUROC over the foreign sets of each seed. A series begins with seed 0: rows of before the last one of
    that seed, whose encoder may have had other settings, do not count.
    """
    found: dict[tuple, dict[int, dict]] = defaultdict(dict)
    for row in rows("out_of_distribution"):
        if row["data"] == data and (peers or not row["detector"].startswith(detection_tables.PEERS)):
            key = row["encoder"], row["level"], row["detector"]
            found[key] = {row["seed"]: row} if row["seed"] == 0 else found[key] | {row["seed"]: row}
    return [_over_seeds(list(of.values())) for of in found.values()]


def _over_seeds(of: list[dict]) -> dict:
    last = max(of, key=lambda row: row.get("date", ""))
    means = {name: statistics.mean(row[name] for row in of) for name in ("mean_foreign", "mean_corrupted")}
    auroc = {name: statistics.mean(row["auroc"][name] for row in of) for name in last["auroc"]}
    return {**last, **means, "auroc": auroc, "seeds": [row["mean_foreign"] for row in of]}


def foreign_table(data: str) -> str:
    """AUROC of each detector on the features of `vje` and on what needs no encoder: the default first, then the controls."""
    shown = [row for row in foreign_rows(data) if row["encoder"] in ("vje", "pixels")]
    shown = [row for row in shown if not re.match("default [23].", row["detector"])]  # parts of rules that are no longer used
    shown.sort(key=lambda row: (row["detector"] != DEFAULT, not row["detector"].startswith("default"), -row["mean_foreign"]))
    best = max(row["mean_foreign"] for row in shown)
    body = []
    for row in shown:
        values = [f"{row['auroc'][f'conf:{name}']:.3f}" for name in FOREIGN[data]]
        mean = f"**{row['mean_foreign']:.3f}**" if row["mean_foreign"] == best else f"{row['mean_foreign']:.3f}"
        level = f"`vje`: {row['level'].removeprefix('own_')}" if row["level"].startswith("own_") else row["level"]
        name = f"**{DEFAULT}, today's**" if row["detector"] == DEFAULT else row["detector"]
        body.append([level, name, *values, mean, f"{row['mean_corrupted']:.3f}"])
    return grid(["level", "detector", *FOREIGN[data], "mean", "corruptions"], body)


def encoders_table(data: str) -> str:
    """Mean AUROC over foreign sets: each encoder with each detector on its embedding, and with the default."""
    found = foreign_rows(data)
    columns = [
        ("z", "Gaussian"),
        ("z", "Gaussian, 64 directions"),
        ("z", "subspace"),
        ("z", "mixture"),
        ("z", "kNN"),
        ("z", "kNN, cosine"),
        ("statistics + patches + z", "default"),
        ("statistics + patches + z", "default 2"),
        ("statistics + patches + z", "default 3"),
        ("statistics + patches + z", "default 4"),
        ("statistics + patches + z", DEFAULT),
    ]
    columns = [key for key in columns if any((row["level"], row["detector"]) == key for row in found)]
    body = []
    for encoder in dict.fromkeys(row["encoder"] for row in found if row["encoder"] != "pixels"):
        own = {(row["level"], row["detector"]): row for row in found if row["encoder"] == encoder}
        epochs = {row.get("epochs") for row in own.values()} - {None}
        name = f"{encoder}, {epochs.pop()} epochs" if epochs and encoder not in ("untrained", "patches") else encoder
        body.append([name, *(f"{own[key]['mean_foreign']:.3f}" if key in own else "" for key in columns)])
    return grid(["encoder", *(how if how.startswith("default") else f"{how} on z" for _, how in columns)], body)


def detection_table() -> str:
    """Mean AUROC over CIFAR-10's foreign sets and that of CIFAR-100: detectors of runs first, then the controls."""
    found = {(row["encoder"], row["level"], row["detector"]): row for row in foreign_rows("cifar10", peers=True)}
    whole, plain = "statistics + patches + z", "statistics + z"
    shown = [
        ("patches", whole, DEFAULT, "**`vergence score` of a `patches` run**"),
        ("patches", whole, "default", "**`vergence score` of a `patches` run, detector of format 1**"),
        ("patches", "z", "kNN", "control: kNN distance on its embedding"),
        ("patches", "z", "Gaussian, 64 directions", "control: one Gaussian on 64 directions of it"),
        ("vje", whole, DEFAULT, "**`vergence score` of a `vje_small` run**"),
        ("vje", plain, "default without patches", "**`vergence score` of a `vje_small` run, detector of format 1**"),
        ("vje", "z", "kNN", "control: kNN distance on its embedding"),
        ("vje", "z", "Gaussian, 64 directions", "control: one Gaussian on 64 directions of it"),
        ("vje", "own_joint", "own score", "control: VJE's joint score"),
        ("distilled", whole, DEFAULT, "**`vergence score` of a `distilled_vje` run**"),
        ("distilled", "z", "kNN", "control: kNN distance on its embedding"),
        ("distilled", "z", "Gaussian, 64 directions", "control: one Gaussian on 64 directions of it"),
        ("pretrained", whole, DEFAULT, "**`vergence score` of a frozen ImageNet network**, at 96 pixels"),
        ("pretrained", "z", "kNN, cosine", "control: cosine distance to the 5th neighbor on its embedding"),
        ("pretrained", "z", "Gaussian, 64 directions", "control: one Gaussian on 64 directions of it"),
        ("pixels", "statistics", "pyod KNN", "control: PyOD's kNN distance on statistics of the pixels"),
        ("pixels", "statistics", "kNN", "control: our kNN distance on them, to 2,000 items"),
        ("pixels", "statistics", "Gaussian", "control: one Gaussian on them"),
        ("pixels", "pixels", "kNN, cosine, 2,000 items", "control: kNN distance on pixels"),
    ]
    body = []
    for *key, label in shown:
        if "format 1" in label and (key[0], whole, DEFAULT) in found:
            continue
        if (row := found.get(tuple(key))) is not None:
            body.append([label, str(len(row["seeds"])), plus_minus(row["seeds"], 3), f"{row['auroc']['conf:cifar100']:.3f}"])
    return grid(["score", "seeds", "mean AUROC, seven sets", "CIFAR-100"], body)


def digits_table() -> str:
    """AUROC of the demo's detector for each digit that is held out, beside the best controls; a digit's last row of each seed."""
    last = {(row["held_out"], row["seed"]): row["auroc"] for row in rows("digits")}
    digits = sorted({digit for digit, _ in last})
    shown = {"detector": "**the run's detector**", "joint": "VJE's joint score"}
    shown |= {f"kNN, {name}": f"control: kNN distance on {name}" for name in ("z", "untrained", "pixels", "pca")}
    shown["Mahalanobis, z"] = "control: Mahalanobis distance on z"
    body = []
    for name, label in shown.items():
        found = [statistics.mean(auroc[name] for (d, _), auroc in last.items() if d == digit) for digit in digits]
        body.append([label, *(f"{value:.3f}" for value in found), f"{statistics.mean(found):.3f}" if found else ""])
    return grid(["score", *map(str, digits), "mean"], body)


def severity_table() -> str:
    """AUROC of the default on `vje`'s features by corruption and severity."""
    found = {row["detector"]: row for row in foreign_rows("cifar10") if row["encoder"] == "vje"}
    row = found.get(DEFAULT, found["default"])
    kinds = list(dict.fromkeys(name.split(":")[1].rsplit(" ", 1)[0] for name in row["auroc"] if name[-2:-1] == " "))
    body = [[kind, *(f"{row['auroc'][f'conf:{kind} {s}']:.3f}" for s in range(1, 6))] for kind in kinds]
    return grid(["corruption", "1", "2", "3", "4", "5"], body)


def same_features_table() -> str:
    """Other packages' detectors beside ours on the same features of seed 0: the last rows."""
    of = [row for row in rows("out_of_distribution") if row["seed"] == 0]
    return grid(*detection_tables.same_features(of, DEFAULT))


PAGES = {
    ROOT / "docs" / "joint_embeddings.md": {
        "trap-toy": functools.partial(trap_table, "toy"),
        "trap-fashion": functools.partial(trap_table, "fashion"),
        **{f"joint-{data}": functools.partial(joint_table, data) for data in ("fashion_mnist", "cifar10")},
        **{f"sampling-{data}": functools.partial(sampling_table, data) for data in ("fashion_mnist", "cifar10")},
        **{f"answers-{data}": functools.partial(answers_table, data) for data in ("mnist", "fashion_mnist", "cifar10")},
        **{f"components-{data}": functools.partial(components_table, data) for data in ("fashion_mnist", "cifar10")},
        "cost": cost_table,
        "pairs-recipes": pairs_recipes_table,
    },
    ROOT / "benchmarks" / "README.md": {"notes": notes_table},
    ROOT / "docs" / "detection.md": {
        **{f"foreign-{data}": functools.partial(foreign_table, data) for data in FOREIGN},
        **{f"encoders-{data}": functools.partial(encoders_table, data) for data in FOREIGN},
        "same-features": same_features_table,
        "held-out-classes": lambda: grid(*detection_tables.held_out_classes(rows("held_out_classes"))),
        "blood-cells": lambda: grid(*detection_tables.blood_cells(rows("blood_cells"))),
        "severity": severity_table,
        "digits": digits_table,
        "findings": findings_table,
        "folder": folder_table,
        "discoveries": functools.partial(summary, calibration_tables, "means"),
        "discoveries-sets": functools.partial(summary, calibration_tables, "sets"),
        **{f"one-class-{data}": functools.partial(summary, one_class_tables, "classes", data=data) for data in FOREIGN},
        "one-class-ridge": functools.partial(summary, one_class_tables, "ridge"),
    },
    ROOT / "README.md": {
        "objectives": objectives_table,
        "two-cores": two_cores_table,
        "methods": functools.partial(summary, methods_tables, "short"),
        "detection": detection_table,
        "training": training_table,
        "speed": speed_table,
        "linear": linear_table,
        "mixtures": mixtures_table,
    },
    ROOT / "docs" / "branches.md": {
        **{
            name: functools.partial(branches_table, name)
            for name in ("separated", "intersecting", "heteroscedastic", "arm", "halves")
        },
        "samples": samples_table,
    },
    ROOT / "docs" / "methods.md": {
        "methods": functools.partial(summary, methods_tables, "every"),
        "recipe-costs": recipe_costs_table,
        "peers": peers_table,
    },
    ROOT / "docs" / "trained.md": {"distilled": distilled_table, "from-random": from_random_table},
    ROOT / "docs" / "encoders.md": {"pretrained": pretrained_table, "duplicates": duplicates_table},
    ROOT / "docs" / "advice.md": {
        "agreement": agreement_table,
        "ties": ties_table,
        "overlaps": overlap_table,
        "failures": failures_table,
        "features": features_table,
    },
    ROOT / "docs" / "corruption.md": {
        "corrupted": functools.partial(corruption_table, "accuracies"),
        "clean": functools.partial(corruption_table, "accuracies", measure="clean_probe"),
        "neighbors": functools.partial(corruption_table, "accuracies", measure="knn30"),
        **{name: functools.partial(corruption_table, name) for name in ("leads", "closed_forms", "drops", "helped", "predicted")},
    },
    ROOT / "docs" / "uncertainty.md": {
        "errors": functools.partial(uncertainty_table, "r_auroc"),
        "errors-equalized": functools.partial(uncertainty_table, "r_auroc_equalized"),
        "foreign": functools.partial(uncertainty_table, "foreign"),
        "degradations": degradations_table,
        "predictive": predictive_table,
    },
}


def written(text: str, tables: dict) -> str:
    """Returns a page's text with its tables generated again."""
    for name, make in tables.items():
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, lambda m, make=make: f"{m[1]}{make()}\n{m[2]}", text, flags=re.S)
        assert count == 1, f"expected one table '{name}' in the page, found {count}"
    return text


def main() -> None:
    for page, tables in PAGES.items():
        text = page.read_text()
        new = written(text, tables)
        if "--check" not in sys.argv:
            page.write_text(new)
        elif new != text:
            sys.exit(f"{page.name} disagrees with the ledger: run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
