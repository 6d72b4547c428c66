"""Tables of accuracies: the default on two cores, networks behind the closed form, and frozen ones; each reads its ledgers."""

import json
import statistics

from experiments.ledger import by_setting, grid, plus_minus, rows

CONTROLS = ("untrained", "pixels", "pca")
COSTS = {"cpu_seconds": 0, "embed_cpu_milliseconds": 2}  # and their digits


def spread(values: list[float]) -> str:
    """Returns mean and standard deviation over seeds, in percent; the number of seeds is in the table."""
    return plus_minus([100 * v for v in values], 1)


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
