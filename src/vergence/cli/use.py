"""The commands on a trained run: evaluate, embed, sample, report."""

import csv
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.utils import terminal
from vergence.utils.checks import counted, expect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vergence.data.items import Items
    from vergence.learn.runs.run import Run


@dataclass(kw_only=True)
class Evaluate:
    """Evaluate a run with its baselines; writes evaluation.json and report.html, and prints a table."""

    run: options.RunFolder
    probes: Annotated[bool, arg(help="Fit linear probes.")] = True
    uncertainty: bool = False
    """Also measure which distances to training items rank errors: items whose nearest other item has another class."""
    wide: bool = False
    """Also fit the ridge probe to the wide features of an encoder patches, those before its affine map."""
    device: options.Device = "auto"
    threads: options.Threads = None
    trust_code: options.TrustCode = False


@dataclass(kw_only=True)
class Embed:
    """Write embeddings, posterior means, variances and log-densities."""

    run: options.RunFolder
    images: Annotated[Positional[str], arg(metavar="IMAGES", help=options.ANY_SOURCE)]
    out: options.TableOut = None
    wide: bool = False
    """Also write the wide features of an encoder patches, those before its affine map, for a classifier with labels."""
    data_root: options.DataRoot = None
    batch_size: options.BatchSize = 256
    device: options.Device = "auto"
    threads: options.Threads = None
    trust_code: options.TrustCode = False
    crops: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Random views of each item, 2 or more; adds the direction of their mean embedding (z_crops) and their spread."""
    shard: options.ShardOf = None


@dataclass(kw_only=True)
class Merge:
    """Join the parts of score, embed or train with --shard: into one table with q-values, flags and page, or into a run."""

    folder: Annotated[Positional[Path], arg(metavar="FOLDER", help="Folder of the parts.")]
    out: Annotated[Path | None, arg(metavar="OUT", help_behavior_hint="(default: FOLDER.parquet, or FOLDER-run)")] = None
    """File to write: .parquet, .csv or .npz; of parts of a training the run folder."""
    data_root: options.DataRoot = None


@dataclass(kw_only=True)
class Export:
    """Write a run as one graph, items to embedding, anomaly score and p-value, that needs no Vergence."""

    run: options.RunFolder
    format: Literal["onnx", "torch"] = "onnx"
    """onnx, or torch for torch.export.load."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: RUN.onnx or RUN.pt2)")] = None
    """File to write."""
    dtype: Annotated[Literal["uint8", "float32"] | None, arg(help_behavior_hint="(default: the items' own)")] = None
    """Type of the input; floats of images are in [0, 1]."""
    trust_code: options.TrustCode = False


@dataclass(kw_only=True)
class Neighbors:
    """Write the most similar items of a source, for each query."""

    run: options.RunFolder
    images: Annotated[Positional[str], arg(metavar="DATA", help=options.ANY_SOURCE)]
    query: Annotated[str | None, arg(metavar="IMAGES", help_behavior_hint="(default: DATA)")] = None
    """Queries: items whose neighbors are searched; any source."""
    n: Annotated[int, arg(help="Neighbors of each item.")] = 5
    out: options.TableOut = None
    data_root: options.DataRoot = None
    batch_size: options.BatchSize = 256
    device: options.Device = "auto"
    trust_code: options.TrustCode = False


@dataclass(kw_only=True)
class Report:
    """Write a run's report: one interactive page that works offline."""

    run: options.RunFolder


def evaluate(command: Evaluate) -> None:
    """Runs ``vergence evaluate``."""
    from vergence.learn.runs.evaluate import evaluate as run_evaluation
    from vergence.learn.runs.page import write_report
    from vergence.learn.runs.run import load
    from vergence.learn.runs.tables import show_evaluation
    from vergence.learn.runs.train import collapse_of

    run = load(command.run, device=command.device, trust_code=command.trust_code)
    ended = f"the training ended, but {words.partition('. ')[0]}" if (words := collapse_of(run)) is not None else None
    show_evaluation(run_evaluation(run, probes=command.probes, uncertainty=command.uncertainty, wide=command.wide), ended)
    print(f"wrote {command.run / 'evaluation.json'} and {write_report(command.run)}")
    print(f"next: vergence score {shlex.quote(str(command.run))} NEW")


def embed(command: Embed) -> None:
    """Runs ``vergence embed``."""
    from vergence.learn.runs.embed import write_embeddings
    from vergence.learn.runs.run import load

    run = load(command.run, device=command.device, trust_code=command.trust_code)
    how: dict[str, Any] = {"crops": command.crops or 0, "wide": command.wide, "batch_size": command.batch_size}
    if command.shard is not None:
        return write_shard(command, run, "embeddings", lambda items, out, of: write_embeddings(run, items, out, **how, **of))
    items = run.items(command.images, root=command.data_root)
    out = command.out or Path(f"embeddings-{options.stem(command.images)}.npz")
    print_written(out, write_embeddings(run, items, out, **how) or 0)
    print(f"next: vergence check {shlex.quote(str(out))}" if out.suffix != ".csv" else "next: read it with pandas.read_csv")


def write_shard(command: Any, run: "Run", name: str, write: "Callable[[Items, Path, dict[str, Any]], int | None]") -> None:
    """Writes a shard of a command's items, with ``shard``, ``about``, ``files`` of `shard_written`; prints what is next."""
    from vergence.data.sources import absolute
    from vergence.learn.runs.shards import part_of
    from vergence.utils.parts import Shard

    images, shard = command.images, Shard.parse(command.shard)
    folder = command.out or Path(f"{name}-{options.stem(images)}")
    own = part_of(images, shard, run.folder.metadata.item_shape())
    items, files = (run.items(images, root=command.data_root), 0) if own is None else own
    about = {"run": str(command.run.absolute()), "source": absolute(images), "name": options.stem(images)}
    rows = write(items, folder, {"shard": shard, "about": about, "files": files})
    if rows is not None:
        print(f"wrote {counted(rows, 'row')} to {folder / shard.name}.parquet")
    print(f"next, with all {shard.of} parts: vergence merge {shlex.quote(str(folder))}")


def merge(command: Merge) -> None:
    """Runs ``vergence merge``."""
    from vergence.learn.runs.shards import merge as run
    from vergence.learn.runs.train import merge_shards

    if any(command.folder.glob("part-*-of-*/config.json")):
        out = command.out or command.folder.with_name(f"{command.folder.name}-run")
        trained = merge_shards(command.folder, out)
        print(f"Trained {out} in closed form: {trained.folder.metadata.n_train:,} items.")
        print(f"next: vergence evaluate {shlex.quote(str(out))}")
        return
    out = command.out or command.folder.with_name(f"{command.folder.name}.parquet")
    merged = run(command.folder, out, lambda record, names: _reopened(record, names, command.data_root))
    found = merged.decisions
    for line in (f"Merged {counted(merged.parts, 'part')}.",) if found is None else found.sentences:
        print(line)
    print_written(out, merged.rows, page=found is not None)
    print(f"next: vergence check {shlex.quote(str(out))}" if found is None else f"next: open {out}.html")


def _reopened(record: "Mapping[str, Any]", names: "Sequence[str]", root: str | None) -> "Items | None":
    """Returns items of a part's record, for the images of some; None, with a note, where they cannot be read here."""
    from vergence.data.shards import files_of, is_sharded, open_shards
    from vergence.learn.runs.run import load

    try:
        run, source = load(record["run"], device="cpu"), str(record["source"])
        shape = run.folder.metadata.item_shape()
        if len(shape) == 3 and is_sharded(source) and len(files := files_of(source)) > 1:
            stems = {name.partition("/")[0] for name in names}
            return open_shards([f for f in files if Path(f).stem in stems], shape=shape, several=True).items
        return run.items(source, root=root)
    except (ValueError, KeyError) as error:
        terminal.note(f"the page has no images: {error}")
        return None


def export(command: Export) -> None:
    """Runs ``vergence export``."""
    from vergence.learn.runs.export import FORMATS
    from vergence.learn.runs.export import export as run
    from vergence.learn.runs.run import load

    ending = next(key for key, name in FORMATS.items() if name == command.format)
    out = command.out or Path(f"{options.stem(command.run)}{ending}")
    expect(out.suffix.lower() == ending, f"a file ending in {ending} for --format {command.format}", out.name)
    found = run(load(command.run, device="cpu", trust_code=command.trust_code), out, dtype=command.dtype)
    print(f"Exported {command.run}: x {found.dtype} (B, {', '.join(map(str, found.shape))}) -> z, score, p_value.")
    print(f"On {found.items} test items its scores differ from the library's by at most {100 * found.difference:.1g} %.")
    print(f"wrote {out}")


def neighbors(command: Neighbors) -> None:
    """Runs ``vergence neighbors``."""
    from vergence.learn.runs.run import load
    from vergence.utils.parts import write_table

    run = load(command.run, device=command.device, trust_code=command.trust_code)
    bank = run.items(command.images, root=command.data_root)
    items = bank if command.query is None else run.items(command.query, root=command.data_root)
    found = run.neighbors(items, bank, command.n, batch_size=command.batch_size)
    out = command.out or Path(f"neighbors-{options.stem(command.query or command.images)}.csv")
    table = found.table()
    write_table(out, {"name": table["name"], "neighbor": table["neighbor"], "similarity": found.similarity.flatten().numpy()})
    own = "\nAn item is a neighbor of itself." if command.query is None else ""
    print(f"{counted(command.n, 'neighbor')} of each of {counted(len(found.names), 'item')}.{own}")
    print(f"wrote {counted(len(table['name']), 'row')} to {out}")


def print_written(out: Path, rows: int, page: bool = False) -> None:
    """Prints how many rows were written, the page next to them if there is one, and where what could not be read is listed."""
    skipped = out.with_name(f"{out.name}.skipped.csv")
    bad = ""
    if skipped.exists():
        with skipped.open(newline="", encoding="utf-8") as file:
            n = sum(1 for _ in csv.reader(file)) - 1
        bad = f"\n{n:,} could not be read: {skipped}"
    print(f"wrote {counted(rows, 'row')} to {out}{f' and the page {out}.html' if page else ''}{bad}")


def report(command: Report) -> None:
    """Runs ``vergence report``."""
    from vergence.learn.runs.page import write_report

    page = write_report(command.run)
    print(f"wrote {page}")
    print(f"next: open {page}")
