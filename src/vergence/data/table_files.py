"""Files of tables as people have them, read as Arrow tables: text with any delimiter, JSON lines, Parquet, workbooks."""

import bz2
import csv
import gzip
import json
import lzma
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vergence.utils.checks import counted, expect, refuse, shortened
from vergence.utils.parts import original

__all__ = ["as_written", "is_table_file", "read_table"]

PACKED: Mapping[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
TEXTS = (".csv", ".tsv", ".txt", ".jsonl")
TABLES = (*TEXTS, ".parquet", ".xlsx")
STREAM = Path("-")  # JSON lines of standard input, or on standard output
DELIMITERS = (",", ";", "\t", "|")
GAPS = ["", "NA", "N/A", "n/a", "#N/A", "nan", "NaN", "NAN", "null", "NULL", "None", "none", "?", "<NA>"]
POINT = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)(\.\d*)?([eE][+-]?\d+)?|[+-]?\.\d+")
COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d*)?([eE][+-]?\d+)?")
HEAD = 20  # lines that show the delimiter


def is_table_file(path: Path) -> bool:
    """Returns whether a file's ending is one of a table: .csv, .tsv, .txt, .jsonl, also as .gz, .bz2, .xz; .parquet, .xlsx."""
    ending = path.suffix.lower()
    return ending in TABLES or (ending in PACKED and Path(path.stem).suffix.lower() in TEXTS)


def read_table(path: Path, *, empty: bool = False) -> Any:
    """Reads a file of a table, see `is_table_file`, or JSON lines of standard input (`STREAM`), and returns an Arrow table.

    ``empty`` says whether a table without rows is one.

    Text is UTF-8, UTF-16 with a byte order mark, or else Western European (cp1252); its delimiter is the one of , ; tab and |
    that gives the first lines the same number of fields. Cells that are empty, NA, NaN, null and so on are gaps.
    """
    import pyarrow as pa

    expect(path == STREAM or path.is_file(), f"a table at {path}", "a folder" if path.is_dir() else "no file")
    try:
        if path == STREAM or ".jsonl" in path.suffixes[-2:]:
            table = _of_json_lines(path)
        elif path.suffix.lower() == ".parquet":
            import pyarrow.parquet as pq

            table = pq.read_table(path, partitioning=None)
        else:
            table = _of_excel(path) if path.suffix.lower() == ".xlsx" else _of_text(path, empty)
    except (pa.ArrowException, OSError, EOFError, lzma.LZMAError, KeyError, TypeError) as error:
        reason = shortened(error)
        raise ValueError(f"expected a table at {path}, found one that cannot be read ({reason}); write it again") from None
    there = sorted(table.column_names)
    twice = [column for column, before in zip(there[1:], there, strict=False) if column == before]
    found = f"the column {twice[0]!r} twice" if twice else "no rows"
    fits = (table.num_rows or empty) and not twice
    expect(fits, f"rows and different column names in {path.name}", found, "rename one" if twice else "")
    return table


def as_written(path: Path, table: Any) -> Any:
    """Returns a table that `read_table` gave with its cells as they stand in the file: 00017, 1.10 and NA are texts there."""
    if path.suffix.lower() == ".xlsx":
        return _of_excel(path, ("",))
    if path == STREAM or not is_table_file(path) or {".jsonl", ".parquet"} & {*path.suffixes[-2:]}:
        return table
    return _of_text(path, True, written=True)


def _of_json_lines(path: Path) -> Any:
    import pyarrow as pa

    rows = []
    for i, line in enumerate(_text(path).split("\n"), 1):
        try:
            row = json.loads(line or "null") if line.strip() else {}
            expect(isinstance(row, dict), "an object", type(row).__name__)
            rows += [row] if line.strip() else []
        except (ValueError, RecursionError) as error:
            where = "standard input" if path == STREAM else path.name
            raise ValueError(f"expected an object in line {i} of {where}: {shortened(error)}; mend the line") from None
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table([_array_of([row.get(name) for row in rows], texts=True) for name in names], names=names)


def _of_text(path: Path, empty: bool, *, written: bool = False) -> Any:
    import pyarrow as pa
    from pyarrow import csv as arrow

    text = _text(path)
    head = [line for line in text.split("\n", 5 * HEAD) if line.strip()][:HEAD]
    found = "the names alone" if head else "0 lines"
    expect(len(head) >= 2 - empty, f"a line of column names and lines of values in {path.name}", found)
    expect(head, f"a line of column names in {path.name}", found)
    head = head if len(head) > 1 else 2 * head
    mark = _delimiter(head)
    names = _fields(head[0], mark)
    if len(names) + 1 == len(_fields(head[1], mark)):  # R writes no name above the names of rows
        names = ["", *names]
    body = text[text.index(head[0]) + len(head[0]) :].lstrip("\r\n").encode()
    if not body:
        return pa.table([pa.nulls(0)] * len(names), names=list(map(original, names)))
    how: dict[str, Any] = {"null_values": GAPS, "strings_can_be_null": True, "quoted_strings_can_be_null": False}
    try:
        table = arrow.read_csv(
            pa.BufferReader(body),
            read_options=arrow.ReadOptions(use_threads=False, column_names=names, block_size=min(len(body) + 1, 1 << 30)),
            parse_options=arrow.ParseOptions(delimiter=mark, newlines_in_values='"' in text),
            convert_options=arrow.ConvertOptions(**({"column_types": dict.fromkeys(names, pa.string())} if written else how)),
        )
    except pa.ArrowException as error:
        reason = re.sub(r"Row #(\d+)", lambda row: f"line {int(row[1]) + 1}", shortened(error))
        raise ValueError(f"expected as many fields in each line of {path.name}, found: {reason}; mend the line") from None
    mended = (pa.array(map(original, v.to_pylist())) if written else _numbers_in_text(v, mark) for v in table.columns)
    return pa.table(list(mended), names=list(map(original, table.column_names)))


def _text(path: Path) -> str:
    content: bytes = sys.stdin.buffer.read() if path == STREAM else path.read_bytes()
    content = PACKED.get(path.suffix.lower(), bytes)(content)
    coding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(coding)
    except UnicodeDecodeError:
        text = content.decode("cp1252", "replace")
    expect("\0" not in text[:10_000], f"text in {path.name}", "bytes that are none", "save it as UTF-8")
    return text


def _delimiter(head: list[str]) -> str:
    """Returns the delimiter that gives the most lines the width of the first data line, at least two fields; else a comma."""

    def agreeing(mark: str) -> tuple[int, bool, int]:
        widths = [len(_fields(line, mark)) for line in head]
        alike = sum(width == widths[1] for width in widths[1:]) if widths[1] > 1 and widths[1] - widths[0] in (0, 1) else 0
        return alike, widths[1] == widths[0], widths[1]

    best = max(DELIMITERS, key=agreeing)
    return best if agreeing(best)[0] else ","


def _fields(line: str, mark: str) -> list[str]:
    try:
        return [field.strip() for field in next(csv.reader([line.rstrip("\r")], delimiter=mark))]
    except csv.Error as error:
        raise ValueError(f"expected column names and values, found a line that is not CSV: {error}") from None


def _numbers_in_text(values: Any, mark: str) -> Any:
    """Returns a column of texts that are all numbers, with decimal commas or thousands separators, as numbers.

    Other texts are those that `vergence.utils.parts.neutral` wrote.
    """
    import pyarrow as pa
    import pyarrow.types as kinds

    if not kinds.is_string(values.type) or not values.null_count < len(values):
        return values
    texts = [None if value is None else value.strip().replace("\N{NO-BREAK SPACE}", "") for value in values.to_pylist()]
    there = [value for value in texts if value is not None]
    point, comma = (all(form.fullmatch(value) for value in there) for form in (POINT, COMMA))
    if not (point or comma):
        return pa.array([value if value is None else original(value) for value in values.to_pylist()], type=values.type)
    if point and comma and any("," in value for value in there):
        comma = mark != ","  # between commas a quoted "1,234" is a thousand; elsewhere the comma is a decimal one
    changed = (
        value if value is None else value.replace(".", "").replace(",", ".") if comma else value.replace(",", "")
        for value in texts
    )
    return pa.array([None if value is None else float(value) for value in changed], type=pa.float64())


def _of_excel(path: Path, gaps: Sequence[str] = GAPS) -> Any:
    import pyarrow as pa

    try:
        import openpyxl
    except ImportError:
        refuse("openpyxl to read .xlsx", "none", "pip install 'vergence[excel]', or save the sheet as .csv")
    try:
        sheet = openpyxl.load_workbook(path, read_only=True, data_only=True).worksheets[0]
        rows = [row for row in sheet.iter_rows(values_only=True) if any(cell is not None for cell in row)]
    except Exception as error:  # what openpyxl raises for a damaged file is not bounded
        raise ValueError(f"expected a workbook at {path}, found one that cannot be read ({shortened(error)})") from None
    expect(len(rows) >= 2, f"a row of column names and rows of values in {path.name}", counted(len(rows), "row"))
    names = ["" if cell is None else str(cell).strip() for cell in rows[0]]
    cells = ([None if cell in gaps else cell for cell in column] for column in zip(*rows[1:], strict=True))
    return pa.table([_array_of(column) for column in cells], names=names)


def _array_of(cells: list[Any], *, texts: bool = False) -> Any:
    import pyarrow as pa

    try:
        return pa.array(cells)
    except (pa.ArrowException, TypeError, OverflowError):
        mixed = pa.chunked_array([[None if cell is None else str(cell) for cell in cells]])
        return mixed if texts else _numbers_in_text(mixed, ";")
