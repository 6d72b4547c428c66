"""Tables of accuracies: the default on two cores, networks behind the closed form, and frozen ones; each reads its ledgers."""

import json
import statistics

from experiments.ledger import Row, by_setting, column, grid, median, plus_minus, rows

BASELINES = ("untrained", "pixels", "pca")
RANKED = ("knn30", "probe", "effective_rank")
BESIDE = ("contrastive", "vje", "distilled_vje", "patches_contrastive", "patches_vje")  # trained.md has the others


def training_table() -> str:
    """A line for each setting and representation: mean and standard deviation over seeds."""

    def setting(row: Row) -> tuple:
        config = row["config"]
        return row["data"], row["recipe"], row["n_train"], config["fit"]["epochs"], json.dumps(config["data"].get("keep_classes"))

    body = []
    for (data, recipe, n, epochs, _), group in by_setting(rows("training"), setting).items():
        for name in ("z", "mu", *BASELINES):
            read = [row["representations"][name] for row in group]
            if read[0]["knn30"] is None:
                continue
            label = f"{name} (baseline)" if name in BASELINES else f"**{name}**"
            where = [data, f"`{recipe}`", f"{n:,} x {epochs}", str(len(group))] if name == "z" else ["", "", "", ""]
            mean, cv = (statistics.mean(row["posterior"][key] for row in group) for key in ("variance_mean", "variance_cv"))
            shares = [column(read, key, scale=100) for key in ("knn30", "probe")]
            body.append([*where, label, *shares, f"{mean:.2f}, {cv:.2f}" if name == "mu" else ""])
    head = ["data", "recipe", "items x epochs", "seeds", "representation", "kNN (30), %", "linear probe, %"]
    return grid([*head, "variance: mean, CV"], body)


def costs(group: list[Row]) -> list[str]:
    """Returns CPU seconds and milliseconds, medians over seeds, and the largest memory, with that of the libraries."""
    if "probe" not in group[-1]:  # older rows: by the wall clock
        return [median(group, "seconds"), "", ""]
    memory = max(row["fit_peak_mib"] for row in group)
    return [median(group, "cpu_seconds"), median(group, "embed_cpu_milliseconds", 1), f"{memory:,}"]


def two_cores_table() -> str:
    """A line for each data set and number of images: the newest default and its baselines, over its seeds."""
    defaults = [row for row in rows("two_cores") if not {"--encoder", "--set", "--curve"} & set(row.get("command", "").split())]
    newest = {(row["data"], row["limit"]): row["encoder"] for row in defaults}
    shown = [row for row in rows("two_cores") if row["encoder"] == newest.get((row["data"], row["limit"]))]
    body = []
    for (data, limit), group in sorted(by_setting(shown, lambda row: (row["data"], row["limit"])).items()):
        shares = [column(group, key) for key in RANKED]
        body.append([data, f"{limit:,}", str(len(group)), "**patches**", *shares, *costs(group)])
        for name in ("pixels", "pca"):
            body.append(["", "", "", f"{name} (baseline)", *(column(group, f"{name}_{key}") for key in RANKED), "", "", ""])
        if (data, limit) == ("cifar10", 10_000):
            body += [["", "", "", *line] for line in beside_two_cores()]
    head = ["data", "items", "seeds", "representation", "kNN (30), %", "linear probe, %", "effective rank"]
    return grid([*head, "whole run, CPU s", "an image, CPU ms", "peak memory, MiB"], body)


def beside_two_cores() -> list[list[str]]:
    """Lines for 10,000 images of CIFAR-10: networks from random weights, after the closed form, and trained on ImageNet."""
    here = [row for row in rows("two_cores") if (row["data"], row["limit"], row["encoder"]) == ("cifar10", 10_000, "small")]
    networks = {row["objective"]: row for row in here if not row.get("distill") and row["objective"] in BESIDE}
    body = []
    for name, row in sorted(networks.items(), key=lambda pair: -pair[1]["knn30"]):
        numbers = [column([row], key) for key in RANKED]
        body.append([f"small network, `{name}`, {row['epochs']} epochs, one seed", *numbers, *costs([row])])
    for row in list(networks.values())[:1]:
        numbers = [column([row], f"untrained_{key}") for key in RANKED]
        body.append(["the same network untrained (baseline)", *numbers, "", "", ""])
    settings = [("cifar10", 10_000, name) for name in BESIDE]
    behind = [row for row in rows("trained") if (row["data"], row["limit"], row["recipe"]) in settings]
    for name, group in sorted(by_setting(behind, lambda row: row["recipe"]).items()):
        seeds = "one seed" if len(group) == 1 else f"{len(group)} seeds"
        body.append([f"`{name}`, {seeds}", *(column(group, key) for key in RANKED), *costs(group)])
    frozen = [row for row in rows("pretrained") if row["data"] == "cifar10" and row["size"] == 96 and row["train"] == 10_000]
    body += [["frozen ImageNet network, 96 pixels (baseline)", f"{row['knn']['z']['30']:.1f}", *5 * [""]] for row in frozen[-1:]]
    return body


def distilled_table() -> str:
    """A line for each data set, number of images and recipe of networks that learned a closed form; the last row of each seed."""
    learned = [row for row in rows("trained") if row.get("distill")]
    groups = by_setting(learned, lambda row: (row["data"], row["limit"], row["recipe"], row["encoder"]))
    body = []
    for (data, limit, recipe, encoder), group in sorted(groups.items(), key=lambda pair: (*pair[0][:2], -pair[1][0]["knn30"])):
        keys = ("knn30", "probe", "baseline_knn30", "effective_rank")
        shares = [plus_minus([100 * (row[key] / 100) for row in group], 1) for key in keys]  # the rounding of the page
        copies = f"{median(group, 'duplicates_of_40')} of 40"
        seconds = [median(group, "cpu_seconds"), median(group, "embed_cpu_milliseconds", 2)]
        body.append([data, f"{limit:,}", f"`{recipe}`", f"`{encoder}`", str(len(group)), *shares, copies, *seconds])
    head = ["data", "items", "recipe", "encoder", "seeds", "kNN (30), %", "linear probe, %", "closed form, kNN", "effective rank"]
    return grid([*head, "duplicates", "whole run, CPU s", "an image, CPU ms"], body)


def from_random_table() -> str:
    """A line for each variant of networks from random weights, columns for the objectives: means over seeds."""
    groups = by_setting(rows("from_random"), lambda row: (row["variant"], row["objective"]))
    names = list(dict.fromkeys(objective for _, objective in groups))
    body = []
    for variant in dict.fromkeys(variant for variant, _ in groups):
        of_names = [groups.get((variant, objective), []) for objective in names]
        seconds = median([row for group in of_names for row in group], "cpu_seconds")
        cells = [" / ".join(column(group, key) for key in RANKED) if group else "" for group in of_names]
        body.append([f"`{variant}`", str(of_names[0][0]["trained_epochs"]), seconds, *cells])
    return grid(["variant", "epochs", "CPU s", *(f"`{name}`: kNN / probe / effective rank" for name in names)], body)


def pretrained_table() -> str:
    """A line for each data set and size of images: kNN on frozen ImageNet features and on baselines, the newest row."""
    body = []
    for (data, size), row in sorted({(row["data"], row["size"]): row for row in rows("pretrained") if "knn" in row}.items()):
        shares = [" / ".join(f"{row['knn'][kind][k]:.1f}" for k in ("5", "30")) for kind in ("z", *BASELINES)]
        body.append([data, str(size), f"{row['train']:,} / {row['test']:,}", *shares])
    head = ["data", "pixels", "items, train / test", "frozen", "untrained", "pixel values", "their components"]
    return grid(head, body)


def duplicates_table() -> str:
    """A line for each size of images: copies of photographs whose original is the nearest of all, the newest row of each."""
    body = []
    for size, row in sorted({row["size"]: row for row in rows("pretrained") if "first" in row}.items()):
        body.append([str(size), str(row["copies"]), *(str(row["first"][kind]) for kind in ("z", *BASELINES))])
    return grid(["pixels", "copies", "frozen", "untrained", "pixel values", "their components"], body)


def wide_table() -> str:
    """A line for each recipe, number of images and of copies: kNN and ridge probes, over seeds, and CPU seconds."""

    def setting(row: Row) -> tuple:
        return row["n_train"], row["recipe"], row.get("copies", 0)

    body = []
    for (n, recipe, copies), group in sorted(by_setting(rows("wide"), setting).items()):
        name = f"`{recipe}`" + (", mirrored copies" if copies else "")
        wide = [row for row in group if row["ridge_wide"] is not None]
        shares = [column(group, key, scale=100) for key in ("knn30", "ridge")]
        seconds = [
            median([row[key] for row in group if row[key] is not None], "cpu_seconds") if any(row[key] for row in group) else ""
            for key in ("training", "embedding")
        ]
        body.append([f"{n:,}", name, str(len(group)), *shares, column(wide, "ridge_wide", scale=100) if wide else "", *seconds])
    head = ["items", "recipe", "seeds", "kNN (30), %", "ridge on z, %", "ridge on wide features, %"]
    return grid([*head, "training, CPU s", "embedding, CPU s"], body)


TABLES = {
    "experiments/accuracy/README.md": {"two-cores": two_cores_table, "training": training_table, "wide": wide_table},
    "experiments/accuracy/trained.md": {"distilled": distilled_table, "from-random": from_random_table},
    "experiments/accuracy/frozen.md": {"pretrained": pretrained_table, "duplicates": duplicates_table},
}
