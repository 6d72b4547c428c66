"""One job in many parts: ``--shard I/N`` writes the rows of a part of the items, ``vergence merge`` makes one table of them.

Shard I of N writes ``part-I-of-N.parquet`` by atomic rename, and then ``part-I-of-N.json``: what the job was, and of scores
how many items have the p-value k / (n + 1), for each k of n calibration items. These counts add, so q-values, flags, drift and
page are those of one process, whatever the number and the order of the parts. A part whose ``.json`` is there is finished.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from vergence.data.items import ArrayItems, Items, Skipped
from vergence.data.shards import files_of, is_sharded, open_shards
from vergence.decide.conformal import Certificate
from vergence.decide.decisions import COLUMNS, Decisions, Tally
from vergence.decide.page import write_decisions
from vergence.learn.training.folder import write_skipped
from vergence.utils import terminal
from vergence.utils.checks import counted, expect, refuse
from vergence.utils.digests import digest_of
from vergence.utils.files import explained, read_object, replacing, sha256
from vergence.utils.parts import Shard, require_table, write_blocks

__all__ = ["Merged", "merge", "part_of", "shard_written"]

FORMAT = 2
ROWS = 65_536  # rows of a block that is merged
SAME = ("format", "verb", "job", "items", "shards", "calibration", "fdr", "certificate")  # what all parts share


class Counted(Tally):
    """The counts of a shard; q-values and flags come when all shards are there."""

    names: ClassVar[Sequence[str]] = ()
    order: ClassVar[Sequence[str]] = COLUMNS

    def columns(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns nothing."""
        return {}


def shard_written(
    shard: Shard,
    folder: Path,
    items: Items,
    write: Callable[[Items, Path], int],
    about: Mapping[str, Any],
    *,
    batch_size: int,
    tally: Counted | None = None,
    files: int = 0,
) -> int | None:
    """Writes the rows of a shard of the items, and its record; returns the number of rows, None where it was there.

    ``write`` writes the rows of some items to a file, and fills the counts of ``tally``. ``about`` is what determines the rows:
    ``verb``, ``job`` (a digest), ``run``, ``source``, ``name`` of the items. ``files`` is the number of large files of a source,
    where the items are those of this shard's files; see `part_of`.
    """
    with explained(folder, "choose another `out`"):
        folder.mkdir(parents=True, exist_ok=True)
    file, part = folder / f"{shard.name}.parquet", shard.range(len(items), batch_size)
    if files:
        part = range(len(items))
    record = {"format": FORMAT, "shards": shard.of, "shard": shard.number, "items": files or len(items), **about}
    record |= {"names": digest_of(items.names[i] for i in part), "batch_size": batch_size}
    if tally is not None:
        certificate = None if tally.certificate is None else vars(tally.certificate)
        ties = None if tally.own is None else np.flatnonzero(tally.own == 0).tolist()  # ranks that no calibration item has
        record |= {"calibration": tally.n, "fdr": tally.fdr, "certificate": certificate, "ties": ties}
    _require_same(record, [_record(path) for path in sorted(folder.glob("part-*-of-*.json"))], folder)
    of_record = file.with_suffix(".json")
    before = _record(of_record) if of_record.exists() else {}
    if before.get("names") == record["names"] and (not before["rows"] or before["sha256"] == _sha256(file)):
        terminal.note(f"part {shard} is there: {counted(before['rows'], 'row')} in {file.name}")
        return None
    rows, some = 0, items.subset(torch.arange(part.start, part.stop))
    if len(part):
        rows = write(some, file)
    record |= {"rows": rows, "sha256": _sha256(file), "skipped": [[one.name, one.reason] for one in some.skipped]}
    if tally is not None:
        seen = np.flatnonzero(tally.counts)
        record |= {"counts": [[int(k), int(tally.counts[k])] for k in seen], "excluded": tally.excluded, "flagged": tally.flagged}
        record["most_anomalous"] = {name: values.tolist() for name, values in tally.most_anomalous.items()}
    with explained(of_record, "free space and repeat the command"), replacing(of_record) as temporary:
        temporary.write_text(json.dumps({**record, "digest": _digest(record)}) + "\n", encoding="utf-8")
    return rows


def part_of(source: str, shard: Shard, shape: tuple[int, ...]) -> tuple[Items, int] | None:
    """Returns the images of a shard's own files, whose index alone is read, and the number of all files of the source.

    None where the source is none of large files, or has fewer of them than shards.
    """
    if len(shape) != 3 or not is_sharded(source):
        return None
    files = files_of(source)
    if len(files) < shard.of:
        return None
    own = shard.range(len(files), 1)
    return open_shards(files[own.start : own.stop], shape=shape, several=len(files) > 1).items, len(files)


@dataclass(frozen=True)
class Merged:
    """What `merge` made: the number of parts and of rows, and, of scores, what was found."""

    parts: int
    rows: int
    decisions: Decisions | None


def merge(
    folder: Path, out: Path, open_items: Callable[[Mapping[str, Any], Sequence[str]], Items | None] = lambda record, names: None
) -> Merged:
    """Writes one table of all parts of a folder, in the items' order, and of scores the page, as one process would have.

    Args:
        folder: Folder of the parts, as ``vergence score --shard`` or ``embed --shard`` wrote them.
        out: ``.npz``, ``.csv`` or ``.parquet`` file to write.
        open_items: Returns the items of a part with some names, for their images on the page; None where they cannot be read.
    """
    require_table(out, folder.glob("part-*"))
    records = _whole(folder)
    first = records[0]
    files = [_file(record, folder) for record in records]
    tally = _added(records) if "counts" in first else None
    names = _names(files, records)
    if tally is not None:
        names = list(dict.fromkeys([*Tally.order, *names]))

    def blocks(wanted: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        for file, record in zip(files, records, strict=True):
            if record["rows"]:
                yield from _blocks(file, wanted, tally)

    write_blocks(out, names, blocks, f"the parts are safe in {folder}: free space, or choose another `out`")
    skipped = [Skipped(*pair) for record in records for pair in record["skipped"]]
    write_skipped(out.with_name(f"{out.name}.skipped.csv"), skipped)
    found = None if tally is None else tally.found(first.get("advice", ""))
    if found is not None:
        items = open_items(first, found.names) or ArrayItems(torch.zeros(1, 1))
        items.skipped = skipped
        write_decisions(Path(f"{out}.html"), found, name=str(first["name"]), items=items)
    return Merged(len(records), sum(record["rows"] for record in records), found)


def _file(record: Mapping[str, Any], folder: Path) -> Path:
    return folder / f"{Shard(record['shard'], record['shards']).name}.parquet"


def _record(path: Path) -> dict[str, Any]:
    try:
        record = read_object(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"expected the record of a part in {path}, cannot read it: {error}; write the part again") from None
    right = record.get("format") == FORMAT and {"shard", "shards", "items", "job", "rows", "names", "sha256"} <= set(record)
    expect(right, f"the record of a part in {path}", "another file", "remove it, and write the part again")
    same = record.pop("digest", None) == _digest(record)
    expect(same, f"the record of a part in {path} as it was written", "an altered one", "remove it, and write the part again")
    return record


def _digest(record: Mapping[str, Any]) -> str:
    return digest_of([json.dumps(record, sort_keys=True)])


def _sha256(file: Path) -> str:
    """Returns the SHA-256 of a part's rows; an empty text where there are none."""
    return sha256(file) if file.is_file() else ""


def _require_same(record: Mapping[str, Any], others: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Raises a ValueError unless all parts are of one job."""
    for other in others:
        different = next((name for name in SAME if record.get(name) != other.get(name)), None)
        if different is not None:
            found = f"{record.get(different)} and {other.get(different)}" if different != "job" else "others"
            what = {"job": "run, detector and settings", "shards": "number of shards"}.get(different, different)
            refuse(f"parts of one job in {folder}", f"another {what}: {found}", "use another folder, or write all parts anew")


def _whole(folder: Path) -> list[dict[str, Any]]:
    """Returns the records of all parts in their order."""
    expect(folder.is_dir(), f"a folder of parts at {folder}", "a file" if folder.exists() else "no folder")
    records = [_record(path) for path in sorted(folder.glob("part-*-of-*.json"))]
    expect(records, f"parts in {folder}", "none", "write them with vergence score or vergence embed and --shard I/N")
    _require_same(records[0], records[1:], folder)
    numbers = [record["shard"] for record in records]
    twice = sorted({i for i in numbers if numbers.count(i) > 1})
    expect(not twice, f"each part once in {folder}", f"part {twice[:1]} twice", "remove one of them")
    missing = sorted(set(range(1, records[0]["shards"] + 1)) - set(numbers))
    some = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
    expect(not missing, f"{records[0]['shards']} parts in {folder}", f"{len(records)}; missing: {some}", "write these")
    for record in records:
        file = _file(record, folder)
        part = f"the rows of part {record['shard']}"
        expect(file.is_file() or not record["rows"], part, f"no {file.name}", "write it again")
        same = not record["rows"] or _sha256(file) == record["sha256"]
        expect(same, f"{part} as they were written", f"others in {file.name}", "write it again")
        judged = record["rows"] - record.get("excluded", 0)
        count = sum(n for _, n in record.get("counts", [[0, judged]]))
        expect(count == judged, f"{part} to be counted", f"{count:,} counts of {judged:,} rows", "write it again")
    return sorted(records, key=lambda record: int(record["shard"]))


def _added(records: Sequence[Mapping[str, Any]]) -> Tally:
    first = records[0]
    certificate = None if first["certificate"] is None else Certificate(**first["certificate"])
    own = None if first.get("ties") is None else np.ones(first["calibration"] + 2, dtype=np.int64)
    if own is not None:
        own[first["ties"]] = 0
    tally = Tally(first["calibration"], first["fdr"], certificate, own=own)
    for record in records:
        tally.add(record["counts"], record["excluded"], record["flagged"], record["most_anomalous"])
    return tally


def _names(files: Sequence[Path], records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the columns of the parts; raises a ValueError where a part has others, or not its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: list[str] = []
    for file, record in zip(files, records, strict=True):
        if not record["rows"]:
            continue
        try:
            about = pq.read_metadata(file)
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"expected the rows of a part in {file}, cannot read it: {error}; write it again") from None
        names = list(about.schema.to_arrow_schema().names)
        expect(about.num_rows == record["rows"], f"{record['rows']:,} rows in {file}", f"{about.num_rows:,}", "write it again")
        expect(not found or names == found, f"the columns {', '.join(found)} in {file}", ", ".join(names), "write it again")
        found = names
    expect(found, "rows in the parts", "none")
    return found


def _blocks(file: Path, wanted: Sequence[str], tally: Tally | None) -> Iterator[dict[str, np.ndarray]]:
    """Yields the columns of a part, some rows at a time, with q-values and flags."""
    import pyarrow.parquet as pq

    new = set(tally.names) & set(wanted) if tally is not None else set()
    read = [name for name in wanted if name not in new]
    needed = [*read, *(name for name in ("p_value", "score", "seen") if new and name not in read)]
    for batch in pq.ParquetFile(file).iter_batches(ROWS, columns=needed):
        columns = {name: _array(batch.column(name)) for name in needed}
        if tally is not None and new:
            columns |= tally.columns(columns)
        yield {name: columns[name] for name in wanted}


def _array(column: Any) -> np.ndarray:
    """Returns an Arrow column as an array (n,) or (n, D)."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), -1)
    if pa.types.is_string(column.type):
        return np.asarray(column.to_pylist(), dtype=np.str_)
    return np.asarray(column.to_numpy(zero_copy_only=False))
