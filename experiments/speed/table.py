"""Tables of speed: next to the bare encoder and other libraries, of objectives and of recipes; each reads its ledgers."""

import math
from collections import defaultdict

from experiments.ledger import grid, plus_minus, rows

BUSY = "busy machine"  # how the note of a row begins whose times are not comparable


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
        body.append(
            [what[row["measurement"]], setting, f"{row['ratio']:.2f}", f"`experiments/speed/run.py {row['measurement'][6:]}`"]
        )
    peers = peer_rows()
    same = ("method", "encoder", "precision", "batch_size", "device", "peer")
    for row in {tuple(row[key] for key in same): row for row in sorted(peers, key=trained_images)}.values():
        what = f"training here / with {row['peer']}, `{row['method']}`"
        setting = f"{row['encoder']}, 32 px, batch {row['batch_size']}, {row['precision']}; {timed(row)}"
        body.append([what, setting, bounded(row["ratio"]), "`experiments/speed/peers.py`"])
    for row in {(row["side"], row["size"]): row for row in rows("photographs")}.values():
        for peer, ratio in row["ratio"].items():
            setting = f"JPEG of {row['side']} px to two views of {row['size']} px, {row['images']} photographs, processor time"
            body.append([f"files to views here / with {peer}", setting, f"{ratio:.2f}", "`experiments/speed/photographs.py`"])
    for row in rows("lightly"):  # of a script that `peers.py` has replaced
        if row["encoder"] not in {one["encoder"] for one in peers}:
            ours, theirs = (
                ", ".join(row[k] for k in (f"{who}_precision", f"{who}_layout") if k in row) for who in ("our", "their")
            )
            setting = f"{row['encoder']}, 32 px, batch {row['batch_size']}; {ours} / {theirs}"
            what = "VJE's training loop / lightly's SimCLR loop, not like for like"
            body.append([what, setting, f"{row['ratio']:.2f}", "a script since replaced by `experiments/speed/peers.py`"])
    return grid(["what", "setting", "ratio", "command"], body)


def peer_rows() -> list[dict]:
    """The last row of ledger ``peers`` for each setting and peer; one measured on an idle machine where there is one."""
    found = sorted((row for row in rows("peers") if row["method"]), key=lambda row: not row["note"].startswith(BUSY))
    same = ("method", "encoder", "precision", "epochs", "batch_size", "device", "peer")  # more images replace fewer
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
    """Lines of ``experiments/speed/peers.py``: this library, then each peer, of each setting; what does not install says why."""
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


def cost_table() -> str:
    """The last row of each width of ``python -m experiments.speed.run objective``."""
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


TABLES = {
    "experiments/speed/README.md": {"speed": speed_table},
    "experiments/joint/measured.md": {"cost": cost_table},
    "docs/reference/methods.md": {"recipe-costs": recipe_costs_table},
    "experiments/methods/measured.md": {"peers": peers_table},
}
