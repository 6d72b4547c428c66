"""Files of tables as people have them, read as Arrow tables: text with any delimiter, JSON lines, Parquet, workbooks, SQLite."""

import bz2
import contextlib
import csv
import gzip
import json
import lzma
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from vergence.utils.checks import counted, expect, refuse, require_choice, shortened, shown
from vergence.utils.dtypes import Array
from vergence.utils.parts import original

__all__ = ["is_table_file", "read_table"]

PACKED: Mapping[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
TEXTS = (".csv", ".tsv", ".txt", ".dat", ".jsonl")
DATABASES = (".sqlite", ".sqlite3", ".db")
TABLES = (*TEXTS, ".parquet", ".xlsx", *DATABASES)
STREAM = Path("-")  # JSON lines of standard input, or on standard output
DELIMITERS = (",", ";", "\t", "|")
GAPS = ["", "NA", "N/A", "n/a", "#N/A", "nan", "NaN", "NAN", "null", "NULL", "None", "none", "?", "<NA>"]
NO_NUMBERS = {*GAPS, ".", "..", "-", "--"}  # gaps in columns of numbers
POINT = re.compile(r"[+-]?(\d+(\.\d*)?([eE][+-]?\d+)?|[1-9]\d{0,2}(,\d{3})+(\.\d*)?|\.\d+([eE][+-]?\d+)?)")
COMMA = re.compile(r"[+-]?(\d+(,\d*)?([eE][+-]?\d+)?|[1-9]\d{0,2}(\.\d{3})+(,\d*)?)")
COIN = "[$€£¥₹]|USD|EUR|GBP|CHF|JPY"
SPACES = "['’ \u00a0\u2007\u2009\u202f]"  # between thousands
UNITS = re.compile(rf"([+-]?)({COIN}|)\s*([+-]?[\d.,](?:[\d.,eE+-]|{SPACES})*?)\s*(%|°[CF]?|{COIN}|)")  # sign, unit, number, unit
GROUPS = re.compile(rf"[+-]?[1-9]\d{{0,2}}({SPACES}\d{{3}})+([.,]\d*)?")
CODE = re.compile(r"0\d+|[A-Za-z]\d+|\d+[A-Za-z]")  # that names something, among whole numbers
DIGIT = re.compile(r"\d")
MINUS = str.maketrans("\u2212\u2013", "--")
VALUE = re.compile(r"[+-]?[.,]?\d|\W?[$€£]")  # how a cell begins that is no name
SPACED = re.compile(r'"[^"]*"|\S+')  # a cell between spaces
SHARE = 0.8  # of numbers, from which a column is one of numbers
MOST_VALUES = 30  # of a column of texts where the words of gaps could be values
BLANK = re.compile(r"(?m)^ +\r?$")
COMMENTS = re.compile(r"\A(\s*#[^\n]*\n)+(?=#)")  # all but the last above the names
SHOWN = 6  # columns of a note
HEAD = 20  # lines that show the delimiter
NOTES, SHEET, LINES = b"vergence.notes", b"vergence.sheet", b"vergence.lines"  # keys of an Arrow table's metadata


def is_table_file(path: Path) -> bool:
    """Returns whether a file ends like a table: .csv, .tsv, .txt, .dat, .jsonl, also as .gz, .bz2, .xz; .parquet, .xlsx, .db."""
    return _ending(path) in TABLES


def listed(parts: Sequence[Any], most: int) -> str:
    """Returns the first parts between commas, and how many more there are."""
    return ", ".join([*map(str, parts[:most]), *[f"{len(parts) - most} more"][: len(parts) > most]])


def _ending(path: Path) -> str:
    """Returns how the name of a file ends, without .gz and so on of a packed text; "" for standard input."""
    ending, inner = path.suffix.lower(), Path(path.stem).suffix.lower()
    return inner if ending in PACKED and inner in TEXTS else ending


def read_table(path: Path, sheet: str | None = None, *, empty: bool = False) -> Any:
    """Reads a file of a table, see `is_table_file`, or JSON lines of standard input (`STREAM`), and returns an Arrow table.

    ``sheet`` names a sheet of a workbook or a table of a database, by default the first, or that of images as CellProfiler
    names it; ``empty`` says whether a table without rows is one.

    Text is UTF-8, UTF-16 with a byte order mark, or else Western European (cp1252); its delimiter is the one of , ; tab and |
    that gives the first lines the same number of fields; spaces in .txt and .dat. Cells that are empty, NA, NaN, null and so on
    are gaps. Numbers may have a unit ($, %, ...) and separators of thousands; the columns together say what the decimal mark is.
    What was assumed, and cells that were lost, are listed by `notes_of`.
    """
    import pyarrow as pa

    expect(path == STREAM or path.is_file(), f"a table at {path}", "a folder" if path.is_dir() else "no file")
    ending = _ending(path)
    named = sheet is None or ending in (".xlsx", *DATABASES)
    expect(named, f"a workbook with the sheet {sheet}", path.name, "leave out `sheet`")
    try:
        if path == STREAM or ending == ".jsonl":
            table = _of_json_lines(path)
        elif ending == ".parquet":
            import pyarrow.parquet as pq

            table = pq.read_table(path, partitioning=None)
        elif ending in DATABASES:
            table = _of_database(path, sheet)
        else:
            table = _of_excel(path, sheet) if ending == ".xlsx" else _of_text(path, empty)
    except (pa.ArrowException, sqlite3.Error, OSError, EOFError, lzma.LZMAError, KeyError, TypeError) as error:
        reason = shortened(error)
        raise ValueError(f"expected a table at {path}, found one that cannot be read ({reason}); write it again") from None
    twice = [column for column, n in Counter(table.column_names).items() if n > 1]
    found = f"the column {twice[0]!r} twice" if twice else "no rows"
    fits = (table.num_rows or empty) and not twice
    expect(fits, f"rows and different column names in {path.name}", found, "rename one" if twice else "")
    return table


def notes_of(table: Any) -> list[str]:
    r"""Returns what `read_table` assumed about an Arrow table, and which cells it took for gaps, as sentences."""
    return list(json.loads((table.schema.metadata or {}).get(NOTES, b"[]")))


def lines_of(table: Any) -> Array | None:
    """Returns the lines of the file, from 1, in which the rows (N,) of a table of `read_table` begin; None where it has none."""
    first, n = np.frombuffer((table.schema.metadata or {}).get(LINES, b""), dtype=np.int64), table.num_rows
    return None if not len(first) else first if len(first) == n else first[0] + np.arange(n)


def as_written(path: Path, table: Any) -> Any:
    """Returns a table that `read_table` gave with its cells as they stand in the file: 00017, 1.10 and NA are texts there."""
    ending = _ending(path)
    if ending == ".xlsx":
        return _of_excel(path, table.schema.metadata[SHEET].decode(), written=True)
    return table if ending in (".jsonl", ".parquet") or ending not in TEXTS else _of_text(path, True, written=True)


def _of_json_lines(path: Path) -> Any:
    import pyarrow as pa

    rows: dict[int, dict[str, Any]] = {}
    for i, line in enumerate(_text(path).split("\n"), 1):
        try:
            if line.strip():
                rows[i] = json.loads(line)
                expect(isinstance(rows[i], dict), "an object", type(rows[i]).__name__)
        except (ValueError, RecursionError) as error:
            where = "standard input" if path == STREAM else path.name
            raise ValueError(f"expected an object in line {i} of {where}: {shortened(error)}; mend the line") from None
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    columns = [_array_of([row.get(name) for row in rows.values()]) for name in names]
    return pa.table(columns, names=names, metadata={LINES: _packed([*rows])})


def _packed(lines: Sequence[int]) -> bytes:
    return np.asarray(lines, dtype=np.int64).tobytes()


@dataclass(frozen=True)
class _Layout:
    """Where the rows of a text stand, what divides their cells, and what their columns are called."""

    file: str
    mark: str  # between cells
    names: list[str]
    width: int  # cells of a row
    first: int  # line of the file, from 1, in which the rows begin
    rows: str  # their text
    notes: list[str] = field(default_factory=list)

    def columns(self, texts: Sequence[int] | None = None) -> list[Any]:
        """Returns the columns as Arrow arrays, each of the type of its cells; or some of them, as they stand in the file."""
        import pyarrow as pa
        from pyarrow import csv as arrow

        if not self.rows.strip("\r\n") or (texts is not None and not len(texts)):
            return [pa.nulls(0)] * (self.width if texts is None else len(texts))
        names, body = list(map(str, range(self.width))), self.rows.encode()
        how: dict[str, Any] = {"null_values": GAPS, "strings_can_be_null": True, "quoted_strings_can_be_null": False}
        if texts is not None:
            how = {"column_types": dict.fromkeys(names, pa.string()), "include_columns": [names[i] for i in texts]}
        try:
            table = arrow.read_csv(
                pa.BufferReader(body),
                read_options=arrow.ReadOptions(use_threads=False, column_names=names, block_size=min(len(body) + 1, 1 << 30)),
                parse_options=arrow.ParseOptions(delimiter=self.mark, newlines_in_values='"' in self.rows),
                convert_options=arrow.ConvertOptions(**how),
            )
        except pa.ArrowException as error:
            expected = f"{counted(self.width, 'field')} in each line of {self.file}"
            advice = "leave out what stands below the table"
            for line, cells in _records(self.rows, self.mark):
                found = f"{len(cells)} in line {line + self.first - 1}"
                expect(len(cells) == self.width, expected, found, f"mend the line, or {advice}")
            raise ValueError(f"expected a table in {self.file}, found {shortened(error)}; mend the line") from None
        return [pa.concat_arrays(column.chunks) for column in table.columns]

    def line(self, row: int) -> int:
        """Returns the line of the file, from 1, in which a row begins."""
        return self.first - 1 + next(islice(_records(self.rows, self.mark), row, None))[0]

    def lines(self, n: int) -> list[int]:
        """Returns the lines in which n rows begin, the first alone where each is one line."""
        even = self.rows.rstrip("\r\n").count("\n") + 1 == n
        return [self.first] if even or not n else [self.first - 1 + line for line, _ in _records(self.rows, self.mark)]


def _records(text: str, mark: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the first line, from 1, and the cells of each record that is not blank."""
    reader, line = csv.reader((part[0] for part in re.finditer(r"[^\n]*\n|[^\n]+", text)), delimiter=mark), 1
    try:
        for cells in reader:
            if len(cells) > 1 or "".join(cells).strip():
                yield line, [cell.strip() for cell in cells]
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"expected column names and values, found a line that is not CSV: {error}") from None


def _of_text(path: Path, empty: bool, *, written: bool = False) -> Any:
    import pyarrow as pa

    layout = _aligned(_layout(path, _text(path), empty))
    if written:
        columns = list(map(_originals, layout.columns(range(len(layout.names)))))
        return pa.table(columns, names=list(map(original, layout.names)))
    columns = layout.columns()[: len(layout.names)]
    columns = _settled(layout, columns, layout.columns, [i for i, v in enumerate(columns) if pa.types.is_floating(v.type)])
    more = {NOTES: json.dumps(layout.notes), LINES: _packed(layout.lines(len(columns[0])))}
    return pa.table(columns, names=list(map(original, layout.names)), metadata=more)


def _originals(column: Any) -> Any:
    """Returns the texts of an Arrow column as they were before they were written; Arrow loads pandas for new ones."""
    import pyarrow as pa

    texts = column.to_pylist()
    found = [text if text is None else original(text) for text in texts]
    return column if found == texts and texts else pa.array(found, pa.string())


def _text(path: Path) -> str:
    content: bytes = sys.stdin.buffer.read() if path == STREAM else path.read_bytes()
    content = PACKED.get(path.suffix.lower(), bytes)(content)
    coding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(coding)
    except UnicodeDecodeError:
        text = content.decode("cp1252", "replace")
    text = text if "\n" in text else text.replace("\r", "\n")
    expect("\0" not in text[:10_000], f"text in {path.name}", "bytes that are none", "save it as UTF-8")
    return text


def _layout(path: Path, text: str, empty: bool) -> _Layout:
    text = text if '"' in text else BLANK.sub("", text)
    text = COMMENTS.sub(lambda lines: "\n" * lines[0].count("\n"), text)
    mark, records = _divided(text)
    if _ending(path) in (".txt", ".dat") and all(len(cells) == 1 for _, cells in records):
        spaced = "\n".join("\t".join(SPACED.findall(line)) for line in text.split("\n"))
        between = _divided(spaced)
        if _hold_values([cells for _, cells in between[1]]):
            text, (mark, records) = spaced, between
    rows = [cells for _, cells in records]
    width = _usual(rows)
    at = _header(rows, width) if rows else 0
    found = "the names alone" if records else "0 lines"
    below = "" if empty else " and lines of values"
    expect(len(records) >= at + 2 - empty, f"a line of column names{below} in {path.name}", found)
    line, names = records[at]
    names = [re.sub(r"^#\s+(?=\S)", "", names[0]), *names[1:]]
    first = records[at + 1][0] if at + 1 < len(records) else line + 1
    above = [f"left out above the names in line {line}: {shown(' '.join(rows[0]).strip())}"] if at else []
    return _Layout(path.name, mark, names, width, first, text.split("\n", first - 1)[-1] if records[at + 1 :] else "", above)


def _hold_values(rows: list[list[str]]) -> bool:
    """Returns whether rows between spaces are those of a table: most of one width, with numbers that are no thousands."""
    even = sum(len(row) == _usual(rows) for row in rows) >= SHARE * (len(rows) - 1)
    values = any(VALUE.match(cell) for row in rows[1:] for cell in row)
    return even and values and not all(GROUPS.fullmatch(" ".join(row)) for row in rows[1:])


def _divided(text: str) -> tuple[str, list[tuple[int, list[str]]]]:
    """Returns the delimiter that gives the most of the first records one width, at least two cells, else a comma; and these."""
    heads: dict[str, list[tuple[int, list[str]]]] = {}
    for mark in DELIMITERS:
        with contextlib.suppress(ValueError):  # with a wrong delimiter a line can be one cell that is too long
            heads[mark] = list(islice(_records(text, mark), HEAD))
    if not heads:
        list(islice(_records(text, DELIMITERS[0]), HEAD))

    def agreeing(mark: str) -> tuple[int, bool, int]:
        rows = [cells for _, cells in heads[mark]]
        width = _usual(rows)
        return sum(len(row) == width for row in rows) if width > 1 else 0, [len(row) for row in rows[:1]] == [width], width

    best = max(heads, key=agreeing)
    return best, heads[best]


def _usual(rows: Sequence[Sequence[str]]) -> int:
    """Returns the most frequent number of cells of a row."""
    many = Counter(map(len, rows))
    return max(many, key=lambda width: (many[width], [width] == [*map(len, rows[1:2])], width), default=0)


def _header(rows: Sequence[Sequence[str]], width: int) -> int:
    """Returns which of the first rows holds the names: below comments and a title, above the values."""
    values = [any(VALUE.match(cell) for cell in row) for row in rows]
    at = next((i for i, row in enumerate(rows) if len(row) == width and not row[0].startswith("#")), 0)
    names = {*rows[at]} - {*GAPS}
    if at and (values[at] or not any(values[at:]) or len(names) < width):
        at -= 1
    for title, row in zip(rows[at:], rows[at + 1 :], strict=False):
        alone = title[0] and row[1:] and not any(title[1:])  # a title stands in its first cell
        if not alone or {*row} & {*GAPS} or values[at + 1] or not any(values[at + 2 :]):
            break
        at += 1
    return at


def _aligned(layout: _Layout) -> _Layout:
    """Returns a layout with a name for each column; of columns behind the last name nothing is read."""
    names, width = layout.names, layout.width
    if len(names) == width + 1 and not names[-1]:
        return replace(layout, names=names[:-1])
    if len(names) == width - 1 and layout.rows:
        first, last = (values.to_pylist() for values in layout.columns([0, width - 1]))
        if not any(last):
            layout.notes.append("the delimiter at the end of each line is left out")
            return layout
        quoted = len(re.findall(r'(?m)^"', layout.rows)) >= len(first)  # R puts quotes
        texts = all((quoted and cell.isdigit()) or not (POINT.fullmatch(cell) or COMMA.fullmatch(cell)) for cell in first)
        if first == [str(i + 1) for i in range(len(first))] or (texts and len({*first}) == len(first)):
            return replace(layout, names=["", *names])  # R writes no name above the names of rows
    found = f"{len(names)} above the {counted(width, 'field')} of line {layout.first}"
    advice = "name each column; put numbers with decimal commas between semicolons"
    expect(len(names) == width, f"as many column names as fields in {layout.file}", found, advice)
    return layout


# Numbers in texts


@dataclass(frozen=True)
class _Cells:
    """A column of texts most of which are numbers."""

    written: list[str | None]
    numbers: list[str | None]  # without units and spaces; empty where there is no number, none in gaps
    mark: str  # the decimal mark that more of them have; empty where each can be read with both

    def first(self, form: str) -> int | None:
        """Returns the first row whose number has a form; None if there is none."""
        return next((row for row, text in enumerate(self.numbers) if text is not None and re.fullmatch(form, text)), None)

    def guessed(self, between: str) -> str:
        """Returns the decimal mark where nothing tells it: 987 next to 1,012 shows thousands, as do quotes between commas."""
        thousands = between == "," or (self.first(r"-?\d{1,3}") is not None and self.first(r"-?\d{4,}") is None)
        return "," if self.first("[^,]*,.*") is not None and not thousands else "."

    def values(self, mark: str) -> list[float | None]:
        """Returns the numbers."""
        form, other = (COMMA, ".") if mark == "," else (POINT, ",")
        fits = (text if text and form.fullmatch(text) else None for text in self.numbers)
        return [None if text is None else float(text.replace(other, "").replace(",", ".")) for text in fits]


def _cells(written: list[str | None]) -> _Cells | None:
    """Returns a column of texts as cells of numbers; none where fewer than `SHARE` of them are numbers."""
    texts = [None if text is None or text.strip() in NO_NUMBERS else text.strip() for text in written]
    there = [text for text in texts if text is not None]
    least = max(SHARE * len(there), 1)
    codes = any(map(CODE.fullmatch, there)) and not any("." in text or "," in text for text in there)
    if codes or sum(bool(DIGIT.search(text)) for text in there) < least:
        return None
    numbers = texts if all(POINT.fullmatch(text) or COMMA.fullmatch(text) for text in there) else _without_units(texts)
    points, commas = (sum(bool(text and form.fullmatch(text)) for text in numbers) for form in (POINT, COMMA))
    mark = "." if points > commas else "," if commas > points else ""
    return _Cells(written, numbers, mark) if max(points, commas) >= least else None


def _without_units(texts: list[str | None]) -> list[str | None]:
    """Returns numbers without their unit and spaces; empty texts where there is none, or another unit than in most."""
    plain = (re.sub(r"^\((.*[$€£¥].*)\)$", r"-\1", (text or "").translate(MINUS)) for text in texts)  # (...) of accountants
    parts = [match.groups() if (match := UNITS.fullmatch(text)) else ("", "", "", "") for text in plain]
    units = Counter((before, behind) for _, before, number, behind in parts if number).most_common(1)
    numbers = list(texts)
    for row, (sign, before, number, behind) in enumerate(parts):
        if numbers[row] is not None:
            number = re.sub(SPACES, "", number) if GROUPS.fullmatch(number) else number
            numbers[row] = sign + number if units and (before, behind) == units[0][0] else ""
    return numbers


def _settled(layout: Any, columns: list[Any], texts_of: Callable[[list[int]], list[Any]], floats: list[int]) -> list[Any]:
    """Returns columns whose texts are numbers as numbers, by the decimal mark of the file. What was assumed is noted.

    ``floats`` are the columns that a decimal point made numbers, which are read anew if a comma may be the decimal mark.
    """
    import pyarrow as pa

    texts = {i: v.to_pylist() for i, v in enumerate(columns) if pa.types.is_string(v.type) and v.null_count < len(v)}
    cells = {i: found for i, written in texts.items() if (found := _cells(written))}
    doubtful = floats if layout.mark != "," or any(one.mark == "," for one in cells.values()) else []
    few = [i for i in texts if i not in cells and columns[i].null_count]
    few = [i for i in few if len({*texts[i]}) - 1 <= min(MOST_VALUES, len(texts[i]) // 2)]
    again = {i: v.to_pylist() for i, v in zip([*doubtful, *few], texts_of([*doubtful, *few]), strict=True)}
    unclear = [i for i in doubtful if all(not text or COMMA.fullmatch(text.strip()) or text in GAPS for text in again[i])]
    marks = {one.mark for one in cells.values() if one.mark} | ({"."} if len(floats) > len(unclear) else set())
    for i in unclear:
        both = zip(again[i], columns[i].to_pylist(), strict=True)
        cells[i] = _Cells(again[i], [None if value is None else text.strip() for text, value in both], "")
    settled = list(columns)
    for i, one in sorted(cells.items()):
        mark = one.mark or (min(marks) if len(marks) == 1 else one.guessed(layout.mark))
        if not one.mark:
            _check_mark(layout, i, one, mark if len(marks) != 1 else "")
        if i in texts or mark == ",":
            values = one.values(mark)
            settled[i] = pa.array(values, pa.float64())
            _note_gaps(layout, i, one, values)
    for i in (i for i in texts if i not in cells):
        settled[i] = _originals(columns[i])
    words = [(i, Counter(text for text, value in zip(again[i], texts[i], strict=True) if value is None and text)) for i in few]
    lost = [f"{word} in {counted(n, 'row')} of {layout.names[i]}" for i, found in words for word, n in found.items()]
    layout.notes.extend([f"taken for gaps: {listed(lost, SHOWN)}"] if lost else [])
    return settled


def _check_mark(layout: Any, i: int, cells: _Cells, assumed: str) -> None:
    """Notes a decimal mark that was assumed; raises a ValueError where a column has both marks and no cell tells which it is."""
    found = [(row, sign) for sign in ",." if (row := cells.first(rf"[^{sign}]*[{sign}].*")) is not None]
    where = [f"{shown(cells.written[row])} in line {layout.line(row)}" for row, _ in found]
    expect(len(found) < 2, f"one decimal mark in the column {layout.names[i]}", " and ".join(where), "write all cells alike")
    for _, sign in found if assumed else ():
        role = "the decimal mark" if sign == assumed else "a separator of thousands"
        layout.notes.append(f"{layout.names[i]}: {sign!r} is read as {role} ({where[0]}), but no column tells")


def _note_gaps(layout: Any, i: int, cells: _Cells, values: list[float | None]) -> None:
    rows = [row for row, text in enumerate(cells.numbers) if text is not None and values[row] is None]
    if rows:
        more = f", as {'is' if len(rows) == 2 else 'are'} {counted(len(rows) - 1, 'other cell')}" if rows[1:] else ""
        where = f"{shown(cells.written[rows[0]])} in line {layout.line(rows[0])}"
        layout.notes.append(f"{layout.names[i]}: {where} is no number and is taken for a gap{more}")


def _of_excel(path: Path, title: str | None, *, written: bool = False) -> Any:
    import pyarrow as pa

    try:
        import openpyxl
    except ImportError:
        refuse("openpyxl to read .xlsx", "none", "pip install 'vergence[excel]', or save the sheet as .csv")
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        titles = [sheet.title for sheet in book.worksheets]
        chosen = titles[0] if title is None or title not in titles else title
        rows = {i: row for i, row in enumerate(book[chosen].iter_rows(values_only=True), 1) if any(c is not None for c in row)}
    except Exception:  # what openpyxl raises for a damaged file is not bounded
        raise ValueError(f"expected a workbook at {path}, found one that cannot be read; save it as .xlsx or .csv") from None
    require_choice(f"the sheet of {path.name}", chosen if title is None else title, titles)
    expect(len(rows) >= 2, f"a row of column names and rows of values in {path.name}", counted(len(rows), "row"))
    used = [i for i, column in enumerate(zip(*rows.values(), strict=True)) if any(cell is not None for cell in column)]
    lines, cells = list(rows), [[row[i] for i in used] for row in rows.values()]
    head = [["" if cell is None else str(cell).strip() for cell in row] for row in cells[:HEAD]]
    at = _header(head, len(head[0]))
    others = ", ".join(other for other in titles if other != chosen)
    notes = [f"the sheet {chosen} is read; `sheet=NAME` reads another: {others}"] if others and title is None else []
    notes += [f"left out above the names in line {lines[at]}: {shown(' '.join(head[0]).strip())}"] if at else []
    sheet = SimpleNamespace(names=head[at], notes=notes, mark=";", line=lines[at + 1 :].__getitem__)
    columns = list(map(list, zip(*cells[at + 1 :], strict=True)))
    columns = list(map(_array_of, columns)) if written else _of_cells(sheet, columns)
    more = {NOTES: json.dumps(notes), SHEET: chosen, LINES: _packed(lines[at + 1 :])}
    return pa.table(columns, names=sheet.names, metadata=more)


def _of_database(path: Path, title: str | None) -> Any:
    import pyarrow as pa

    with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as file:
        titles = [
            name for (name,) in file.execute("select name from sqlite_master where type in ('table', 'view') order by rowid")
        ]
        expect(titles, f"a table in {path.name}", "none")
        of_images = [one for one in titles if one.lower().removeprefix("per_").endswith("image")]
        require_choice(f"the table of {path.name}", chosen := title or [*of_images, *titles][0], titles)
        rows = file.execute(f'select * from "{chosen}"')
        names, columns = [name for name, *_ in rows.description], list(map(list, zip(*rows, strict=True)))
    notes = [f"the table {chosen} is read, of {listed(titles, SHOWN)}"] if len(titles) > 1 and title is None else []
    arrays = list(map(_array_of, columns)) or [pa.nulls(0) for _ in names]
    return pa.table(arrays, names=names, metadata={NOTES: json.dumps(notes)})


def _of_cells(sheet: Any, cells: list[list[Any]]) -> list[Any]:
    """Returns columns of a sheet as Arrow arrays; in a column of numbers and texts the numbers are as they are."""
    import pyarrow as pa

    def number(cell: Any) -> float | None:
        return float(cell) if isinstance(cell, int | float) and not isinstance(cell, bool) else None

    def texts_of(some: list[int]) -> list[Any]:
        return [pa.array(["" if cell is None else str(cell) for cell in cells[i]], pa.string()) for i in some]

    columns = [_array_of([None if isinstance(cell, str) and cell in GAPS else cell for cell in column]) for column in cells]
    given = list(columns)
    for i, old in enumerate(columns):
        if pa.types.is_string(old.type):
            codes = all(cell is None or (isinstance(cell, str) and cell.isdigit()) for cell in cells[i])  # 00017 is a text
            both = zip(cells[i], old.to_pylist(), strict=True)
            given[i] = pa.array(["x" if codes else text if number(cell) is None else "0" for cell, text in both], pa.string())
    for i, new in enumerate(_settled(sheet, given, texts_of, [])):
        if new.type != columns[i].type:
            both = zip(map(number, cells[i]), new.to_pylist(), strict=True)
            columns[i] = pa.array([value if known is None else known for known, value in both], pa.float64())
    return columns


def _array_of(cells: list[Any]) -> Any:
    import pyarrow as pa

    try:
        return pa.array(cells)
    except (pa.ArrowException, TypeError, OverflowError):
        return pa.array([None if cell is None else str(cell) for cell in cells], pa.string())
