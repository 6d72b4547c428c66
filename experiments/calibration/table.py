"""Tables of this folder's page: false-discovery proportion and power over splits, of the last row of each setting."""

import statistics
from collections import defaultdict

from experiments.ledger import Row, grid, rows

LEVELS = ("0.05", "0.1", "0.2")
NAMES = {"detector": "default detector", "joint": "VJE's joint score"}
METHODS = {"bh": "Benjamini-Hochberg", "storey": "Storey"}
DATA = ("cifar10", "fashion_mnist", "blood_cells", "digits")  # in the order of the tables; the first two have means over sets
FIELDS = ("fdp", "fdp_error", "above", "power", "nothing")  # of a result, in the order in which a row lists them
PARTS = {"same part": "", "training part": ", of the training part"}
LAWS = ("normal", "counts")  # of the table of rates: of two values nothing is flagged
SETTING = ("data", "encoder", "score", "unusual_set", "calibration", "items", "share", "calibrated_on")


def last() -> list[Row]:
    """Returns the last row of each setting, with the names of what was found at each level."""
    newest = {tuple(row[name] for name in SETTING): row for row in rows("calibration")}.values()

    def named(levels: dict[str, list[float]]) -> dict[str, dict[str, float]]:
        return {level: dict(zip(FIELDS, values, strict=True)) for level, values in levels.items()}

    return [{**row, "found": {method: named(levels) for method, levels in row["found"].items()}} for row in newest]


def cell(result: dict[str, float]) -> str:
    """Returns false-discovery proportion with its standard error, how many splits are above the level, and power."""
    if result["nothing"] == 1:
        return "nothing reported"
    rate = f"{result['fdp']:.3f} ± {result['fdp_error']:.3f}"
    return f"{rate} (above: {100 * result['above']:.0f} %), power {result['power']:.2f}"


def in_sets(row: Row) -> bool:
    """Returns whether a row is in the table of sets: that of a tenth of unusual items, of images at 2,000 calibration items."""
    if row["score"] == "joint" or row["data"] == "digits":
        return bool(row["score"] != "joint")
    if row["data"] == "blood_cells":
        return bool(row["share"] == 0.1 and row["calibration"] != 200)
    return bool(row["calibrated_on"] == "same part" and (row["calibration"], row["share"]) == (2000, 0.1))


def sets_table() -> str:
    """A line for each encoder and set at 2,000 calibration items, for the digits, and for cells by what calibrates."""
    body = []
    for row in sorted(filter(in_sets, last()), key=lambda row: DATA.index(row["data"])):
        sizes = [f"{row['calibration']:,}{PARTS[row['calibrated_on']]}", f"{row['unusual']} of {row['items']:,}"]
        where = [f"{row['data']}, `{row['encoder']}`", row["unusual_set"], f"{row['auroc']:.3f}"]
        body.append([*where, *sizes, *(cell(row["found"]["bh"][level]) for level in LEVELS)])
    head = ["normal, encoder", "anomalous", "AUROC", "calibration items", "anomalies in the batch"]
    return grid([*head, *(f"at {level}" for level in LEVELS)], body)


def means_table() -> str:
    """A line for each number of calibration items and share, and one with Storey's method: means over unusual sets."""
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for row in last():
        for method in row["found"] if row["data"] in DATA[:2] else ():
            order = DATA.index(row["data"]), list(NAMES).index(row["score"])
            key = (row["encoder"], row["calibrated_on"], row["calibration"], row["share"], method)
            groups[(*order, *key)].append(row)
    body = []
    for (data, score, encoder, part, n, share, method), group in sorted(groups.items()):
        if (score == 1 or method == "storey") and (n, share) != (2000, 0.1):
            continue
        cells = []
        for level in LEVELS:
            found, fewest = [row["found"][method][level] for row in group], group[0]["fewest"][level]
            rates, power = [result["fdp"] for result in found], statistics.mean(result["power"] for result in found)
            rate = f"{statistics.mean(rates):.3f}, at most {max(rates):.3f}; power {power:.2f}"
            cells.append(rate if fewest <= group[0]["unusual"] else f"at least {fewest} would have to be reported")
        name = f"{list(NAMES.values())[score]}, `{encoder}`"
        body.append([DATA[data], name, str(len(group)), f"{n:,}{PARTS[part]}", f"{100 * share:g} %", METHODS[method], *cells])
    head = ["normal", "score", "anomalous sets", "calibration items", "anomalies", "method"]
    return grid([*head, *(f"at {level}" for level in LEVELS)], body)


def simulated() -> list[Row]:
    """Returns the last row of each simulated setting."""
    keys = ("setting", "way", "law", "calibration", "share", "change")
    return list({tuple(row.get(key) for key in keys): row for row in rows("calibration_rates")}.values())


def proportion(row: Row) -> str:
    """Returns false-discovery proportion with its standard error, and power."""
    power = "" if row.get("power") is None else f", power {row['power']:.2f}"
    return f"{row['fdp']:.3f} ± {row['fdp_error']:.3f}{power}"


def rates_table() -> str:
    """A line for each law, way and share of simulated tables, with a column for each number of calibration items."""
    found = {
        (r["law"], r["way"], r["share"], r["calibration"]): r
        for r in simulated()
        if r["setting"] == "tables" and r["law"] in LAWS
    }
    sizes = sorted({key[3] for key in found})
    lines = sorted({key[:3] for key in found}, key=lambda key: (key[0], key[2], key[1]))
    body = [
        [law, f"{100 * share:g} %", way, *(proportion(found[law, way, share, n]) for n in sizes)] for law, way, share in lines
    ]
    return grid(["scores", "anomalies", "rate", *(f"{n:,} calibration items" for n in sizes)], body)


def others_table() -> str:
    """A line for each other simulated setting."""
    body = []
    for row in simulated():
        if row["setting"] != "tables":
            name = ", ".join(str(row[key]) for key in ("setting", "way", "change") if key in row)
            share = "" if "share" not in row else f"{100 * row['share']:g} %"
            kept = [f"{key} {row[key]:.3f}" for key in ("above", "pooled", "quiet", "told", "warned", "p_at_rate") if key in row]
            fdp = proportion(row) if "fdp" in row else ""
            body.append([name, str(row["law"]), f"{row['calibration']:,}", share, fdp, "; ".join(kept)])
    return grid(["setting", "scores", "calibration items", "anomalies", "false-discovery proportion", "others"], body)


def streams_table() -> str:
    """A line for each stream: alarms, and the median number of scores up to them."""
    body = []
    for row in rows("calibration_streams"):
        after = "" if row["after"] is None else f"{row['after']:g}"
        where = [row["stream"], "yes" if row["changed"] else "no", f"{row['calibration']:,}", str(row["streams"])]
        body.append([*where, f"{row['alarm']:g}", f"{row['alarms']:.2f}", after])
    return grid(["stream", "changed", "calibration scores", "streams", "alarm", "share with an alarm", "after (median)"], body)


def peers_table() -> str:
    """A line for each rule: false-discovery proportion and power by share of anomalies, simulated and over real vectors."""
    found: dict[tuple, list[list[float]]] = defaultdict(list)
    for row in rows("calibration_peers"):
        for name, values in row["found"].items() if row["calibration"] in (None, 500) else ():
            found[name, "vectors" if row["calibration"] is None else row["scores"], row["share"]].append(values)
    shares = sorted({share for _, _, share in found})
    body = []
    for name, scores in dict.fromkeys(key[:2] for key in found):
        means = [[statistics.mean(values[i] for values in found[name, scores, share]) for i in (0, 2)] for share in shares]
        body.append(
            [
                name,
                scores,
                *(
                    f"{fdp:.2f}" + (f", power {power:.2f}" if share else "")
                    for share, (fdp, power) in zip(shares, means, strict=True)
                ),
            ]
        )
    return grid(["rule", "scores", *(f"{100 * share:g} % anomalies" for share in shares)], sorted(body, key=lambda line: line[1]))


TABLES = {
    "experiments/calibration/README.md": {
        "discoveries": means_table,
        "discoveries-sets": sets_table,
        "rates": rates_table,
        "rates-others": others_table,
        "peers": peers_table,
        "streams": streams_table,
    }
}
