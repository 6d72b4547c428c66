"""Files of tables as people have them, read as Arrow tables: text with any delimiter, JSON lines, Parquet, workbooks."""

import bz2
import contextlib
import csv
import gzip
import json
import lzma
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from vergence.utils.checks import counted, expect, refuse, require_choice, shortened, shown
from vergence.utils.parts import original

__all__ = ["as_written", "is_table_file", "notes_of", "read_table"]

PACKED: Mapping[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
TEXTS = (".csv", ".tsv", ".txt", ".dat", ".jsonl")
TABLES = (*TEXTS, ".parquet", ".xlsx")
STREAM = Path("-")  # JSON lines of standard input, or on standard output
DELIMITERS = (",", ";", "\t", "|")
GAPS = ["", "NA", "N/A", "n/a", "#N/A", "nan", "NaN", "NAN", "null", "NULL", "None", "none", "?", "<NA>"]
DOTS = [".", "..", "-", "--"]  # gaps in columns of numbers
POINT = re.compile(r"[+-]?(\d+(\.\d*)?([eE][+-]?\d+)?|[1-9]\d{0,2}(,\d{3})+(\.\d*)?|\.\d+([eE][+-]?\d+)?)")
COMMA = re.compile(r"[+-]?(\d+(,\d*)?([eE][+-]?\d+)?|[1-9]\d{0,2}(\.\d{3})+(,\d*)?)")
COIN = r"\p{Sc}|USD|EUR|GBP|CHF|JPY|SEK|NOK|DKK"
UNITS = rf"^(?P<sign>[+-]?)(?P<before>{COIN}|)\s*(?P<number>[+-]?[\d.,].*?)\s*(?P<behind>%|°[CF]?|{COIN}|)$"
SPACES = "['’ \u00a0\u2007\u2009\u202f]"  # between thousands
GROUPS = rf"[+-]?[1-9]\d{{0,2}}({SPACES}\d{{3}})+([.,]\d*)?"
VALUE = re.compile(r"[+-]?[.,]?\d|\W?[$€£]")  # how a cell begins that is no name
SPACED = re.compile(r'"[^"]*"|\S+')  # a cell between spaces
SHARE = 0.8  # of numbers, from which a column is one of numbers
MOST_VALUES = 30  # of a column of texts where the words of gaps could be values
BLANK = re.compile(r"(?m)^ +\r?$")
COMMENTS = re.compile(r"\A(\s*#[^\n]*\n)+(?=#)")  # all but the last above the names
HEAD = 20  # lines that show the delimiter
NOTES, SHEET = b"vergence.notes", b"vergence.sheet"  # keys of an Arrow table's metadata


def is_table_file(path: Path) -> bool:
    """Returns whether a file ends like a table: .csv, .tsv, .txt, .dat, .jsonl, also as .gz, .bz2, .xz; .parquet, .xlsx."""
    ending = path.suffix.lower()
    return ending in TABLES or (ending in PACKED and Path(path.stem).suffix.lower() in TEXTS)


def read_table(path: Path, sheet: str | None = None, *, empty: bool = False) -> Any:
    """Reads a file of a table, see `is_table_file`, or JSON lines of standard input (`STREAM`), and returns an Arrow table.

    ``sheet`` names a sheet of a workbook, by default the first; ``empty`` says whether a table without rows is one.

    Text is UTF-8, UTF-16 with a byte order mark, or else Western European (cp1252); its delimiter is the one of , ; tab and |
    that gives the first lines the same number of fields; spaces in .txt and .dat. Cells that are empty, NA, NaN, null and so on
    are gaps. Numbers may have a unit ($, %, ...) and separators of thousands; the columns together say what the decimal mark is.
    What was assumed, and cells that were lost, are told by `notes_of`.
    """
    import pyarrow as pa

    expect(path == STREAM or path.is_file(), f"a table at {path}", "a folder" if path.is_dir() else "no file")
    expect(sheet is None or path.suffix.lower() == ".xlsx", f"a workbook with the sheet {sheet}", path.name, "leave out --sheet")
    try:
        if path == STREAM or ".jsonl" in path.suffixes[-2:]:
            table = _of_json_lines(path)
        elif path.suffix.lower() == ".parquet":
            import pyarrow.parquet as pq

            table = pq.read_table(path, partitioning=None)
        else:
            table = _of_excel(path, sheet) if path.suffix.lower() == ".xlsx" else _of_text(path, empty)
    except (pa.ArrowException, OSError, EOFError, lzma.LZMAError, KeyError, TypeError) as error:
        reason = shortened(error)
        raise ValueError(f"expected a table at {path}, found one that cannot be read ({reason}); write it again") from None
    there = sorted(table.column_names)
    twice = [column for column, before in zip(there[1:], there, strict=False) if column == before]
    found = f"the column {twice[0]!r} twice" if twice else "no rows"
    fits = (table.num_rows or empty) and not twice
    expect(fits, f"rows and different column names in {path.name}", found, "rename one" if twice else "")
    return table


def notes_of(table: Any) -> list[str]:
    r"""Returns what `read_table` assumed about an Arrow table, and which cells it took for gaps, as sentences.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "t.csv"
        >>> _ = file.write_text("dose\n1\n2\n<0.5\n4\n5\n")
        >>> notes_of(read_table(file))
        ["dose: '<0.5' in line 4 is no number and is taken for a gap"]
    """
    return list(json.loads((table.schema.metadata or {}).get(NOTES, b"[]")))


def as_written(path: Path, table: Any) -> Any:
    """Returns a table that `read_table` gave with its cells as they stand in the file: 00017, 1.10 and NA are texts there."""
    if path.suffix.lower() == ".xlsx":
        return _of_excel(path, json.loads((table.schema.metadata or {}).get(SHEET, b"null")), written=True)
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
    return pa.table([_array_of([row.get(name) for row in rows]) for name in names], names=names)


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
            self.require_even()
            raise ValueError(f"expected a table in {self.file}, found {shortened(error)}; mend the line") from None
        return [pa.concat_arrays(column.chunks) for column in table.columns]

    def require_even(self) -> None:
        """Raises a ValueError that names the first line that has another number of cells."""
        for line, cells in _records(self.rows, self.mark):
            expected = f"{counted(self.width, 'field')} in each line of {self.file}"
            advice = "mend the line, or leave out what stands below the table"
            expect(len(cells) == self.width, expected, f"{len(cells)} in line {line + self.first - 1}", advice)

    def line(self, row: int) -> int:
        """Returns the line of the file, from 1, in which a row begins."""
        return self.first - 1 + next(islice(_records(self.rows, self.mark), row, None))[0]


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
        texts = layout.columns(range(len(layout.names)))
        columns = [pa.array(map(original, values.to_pylist()), pa.string()) for values in texts]
    else:
        columns = layout.columns()[: len(layout.names)]
        columns = _settled(layout, columns, layout.columns, [i for i, v in enumerate(columns) if pa.types.is_floating(v.type)])
    return _noted(pa.table(columns, names=list(map(original, layout.names))), {NOTES: layout.notes})


def _noted(table: Any, about: Mapping[bytes, Any]) -> Any:
    return table.replace_schema_metadata({key: json.dumps(value) for key, value in about.items()})


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
    if path.suffix.lower() in (".txt", ".dat") and all(len(cells) == 1 for _, cells in records):
        spaced = "\n".join("\t".join(SPACED.findall(line)) for line in text.split("\n"))
        between = _divided(spaced)
        rows = [cells for _, cells in between[1]]
        if len({*map(len, rows[1:])}) == 1 and any(VALUE.match(cell) for row in rows[1:] for cell in row):
            text, (mark, records) = spaced, between
    rows = [cells for _, cells in records]
    width = _usual(rows)
    at = _header(rows, width) if rows else 0
    found = "the names alone" if records else "0 lines"
    expect(len(records) >= at + 2 - empty, f"a line of column names and lines of values in {path.name}", found)
    expect(records, f"a line of column names in {path.name}", found)
    line, names = records[at]
    names = [re.sub(r"^#\s+(?=\S)", "", names[0]), *names[1:]]
    first = records[at + 1][0] if at + 1 < len(records) else line + 1
    above = [f"left out above the names in line {line}: {shown(' '.join(rows[0]).strip())}"] if at else []
    return _Layout(path.name, mark, names, width, first, text.split("\n", first - 1)[-1] if records[at + 1 :] else "", above)


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
    widths = list(map(len, rows))
    many = Counter(widths)
    return max(many, key=lambda width: (many[width], width == widths[1:2][-1:], width), default=0)


def _header(rows: Sequence[Sequence[str]], width: int) -> int:
    """Returns which of the first rows holds the names: below comments and a title, above the values."""
    values = [any(VALUE.match(cell) for cell in row) for row in rows]
    at = next((i for i, row in enumerate(rows) if len(row) == width and not row[0].startswith("#")), 0)
    names = {*rows[at]} - {""}
    if at and (values[at] or not any(values[at:]) or len(names) < width):
        at -= 1
    while at + 2 < len(rows) and rows[at][0] and not any(rows[at][1:]) and len(rows[at]) > 1:  # a title in its first cell
        if values[at + 1] or not all(rows[at + 1]) or not any(values[at + 2 :]):
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
        whole = re.compile(r"\d+") if len(re.findall(r'(?m)^"', layout.rows)) >= len(first) else None  # R puts quotes
        texts = all(
            whole.fullmatch(cell) if whole and cell[:1].isdigit() else not (POINT.fullmatch(cell) or COMMA.fullmatch(cell))
            for cell in first
        )
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

    written: Any  # Arrow texts
    numbers: Any  # without units and spaces; empty where there is no number, null in gaps
    point: Any  # whether each is a number with a decimal point
    comma: Any  # with a decimal comma

    @property
    def mark(self) -> str:
        """The decimal mark that more of the cells have; none where each cell can be read in both ways."""
        import pyarrow.compute as pc

        points, commas = pc.sum(self.point).as_py(), pc.sum(self.comma).as_py()
        return "." if points > commas else "," if commas > points else ""

    def guessed(self, between: str) -> str:
        """Returns the decimal mark where nothing tells it: 987 beside 1,012 shows thousands, as do quotes between commas."""
        import pyarrow.compute as pc

        if self.first(pc.match_substring(self.numbers, ",")) is None:
            return "."
        short, long = (self.first(_matches(self.numbers, form)) is not None for form in (r"-?\d{1,3}", r"-?\d{4,}"))
        return "." if between == "," or (short and not long) else ","

    def first(self, mask: Any) -> int | None:
        """Returns the first row in which a mask holds."""
        import pyarrow.compute as pc

        at = pc.index(mask, True).as_py()
        return None if at < 0 else int(at)

    def values(self, mark: str) -> tuple[Any, Any]:
        """Returns the numbers, and a mask of the cells that are none."""
        import pyarrow.compute as pc

        fits, other = (self.comma, ".") if mark == "," else (self.point, ",")
        texts = pc.replace_substring(pc.replace_substring(pc.if_else(fits, self.numbers, None), other, ""), ",", ".")
        return pc.cast(texts, "float64"), pc.fill_null(pc.invert(fits), False)


def _matches(texts: Any, form: str) -> Any:
    import pyarrow.compute as pc

    return pc.match_substring_regex(texts, f"^(?:{form})$")


def _cells(written: Any) -> _Cells | None:
    """Returns a column of Arrow texts as cells of numbers; none where fewer than `SHARE` of them are numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(written)
    texts = pc.if_else(pc.is_in(texts, value_set=pa.array([*GAPS, *DOTS])), None, texts)
    least = max(SHARE * (len(texts) - texts.null_count), 1)
    if (pc.sum(pc.match_substring_regex(texts, r"\d")).as_py() or 0) < least:
        return None
    either = f"{POINT.pattern}|{COMMA.pattern}"
    if not pc.all(_matches(texts, either)).as_py():
        texts = _without_units(pc.replace_substring_regex(texts, "[\u2212\u2013]", "-"))
        spaced = pc.replace_substring_regex(texts, SPACES, "")
        texts = pc.if_else(_matches(texts, GROUPS), spaced, texts)
    texts = pc.replace_substring_regex(texts, r"^\+", "")
    point, comma = (_matches(texts, form.pattern) for form in (POINT, COMMA))
    enough = max(pc.sum(point).as_py(), pc.sum(comma).as_py()) >= least
    return _Cells(written, texts, point, comma) if enough else None


def _without_units(texts: Any) -> Any:
    """Returns numbers without their unit, of Arrow texts; empty texts where there is no number, or another unit than in most."""
    import pyarrow.compute as pc

    negative = pc.replace_substring_regex(texts, r"^\((.*\p{Sc}.*)\)$", r"-\1")  # as accountants write it
    parts = pc.extract_regex(negative, UNITS)
    sign, before, number, behind = (pc.struct_field(parts, name) for name in ("sign", "before", "number", "behind"))
    unit = pc.binary_join_element_wise(before, behind, "")
    usual = Counter(unit.drop_null().to_pylist()).most_common(1)
    same = pc.fill_null(pc.equal(unit, usual[0][0] if usual else ""), False)
    return pc.if_else(pc.is_null(texts), None, pc.if_else(same, pc.binary_join_element_wise(sign, number, ""), ""))


def _settled(layout: Any, columns: list[Any], texts_of: Callable[[list[int]], list[Any]], floats: list[int]) -> list[Any]:
    """Returns columns whose texts are numbers as numbers, by the decimal mark of the file. What was assumed is noted.

    ``floats`` are the columns that a decimal point made numbers, which are read anew if a comma may be the decimal mark.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = [i for i, values in enumerate(columns) if pa.types.is_string(values.type) and values.null_count < len(values)]
    cells = {i: found for i in texts if (found := _cells(columns[i])) is not None}
    doubtful = floats if layout.mark != "," or any(one.mark == "," for one in cells.values()) else []
    few = [i for i in texts if i not in cells and _could_hold_words_of_gaps(columns[i])]
    again = dict(zip([*doubtful, *few], texts_of([*doubtful, *few]), strict=True))
    for i in doubtful:
        if (found := _cells(pc.if_else(pc.is_null(columns[i]), None, again[i]))) is not None:
            cells[i] = found
    marks = {one.mark for one in cells.values()} - {""} | ({"."} if floats and not doubtful else set())
    settled = list(columns)
    for i, one in sorted(cells.items()):
        mark = one.mark or (next(iter(marks)) if len(marks) == 1 else one.guessed(layout.mark))
        if not one.mark and len(marks) != 1:
            _note_mark(layout, i, one, mark)
        if i in texts or mark == ",":
            settled[i], strange = one.values(mark)
            _note_strange(layout, i, one, strange)
    for i in (i for i in texts if i not in cells):
        settled[i] = pa.array(map(_original, columns[i].to_pylist()), pa.string())
    words = [_words_of_gaps(layout.names[i], columns[i], again[i]) for i in few]
    layout.notes.extend([f"taken for gaps: {', '.join(filter(None, words))}"] if any(words) else [])
    return settled


def _original(text: str | None) -> str | None:
    return None if text is None else original(text)


def _note_mark(layout: Any, i: int, cells: _Cells, mark: str) -> None:
    for sign in ",.":
        row = cells.first(_matches(cells.numbers, rf".*[{sign}].*"))
        if row is not None:
            role = "the decimal mark" if sign == mark else "a separator of thousands"
            where = f"{shown(cells.written[row].as_py())} in line {layout.line(row)}"
            layout.notes.append(f"{layout.names[i]}: {sign!r} is read as {role} ({where}), but no column tells")


def _note_strange(layout: Any, i: int, cells: _Cells, strange: Any) -> None:
    import pyarrow.compute as pc

    row, n = cells.first(strange), pc.sum(strange).as_py() or 0
    if row is not None:
        more = f", as {'is' if n == 2 else 'are'} {counted(n - 1, 'other cell')}" if n > 1 else ""
        cell = shown(cells.written[row].as_py())
        layout.notes.append(f"{layout.names[i]}: {cell} in line {layout.line(row)} is no number and is taken for a gap{more}")


def _could_hold_words_of_gaps(values: Any) -> bool:
    import pyarrow.compute as pc

    return bool(values.null_count) and pc.count_distinct(values).as_py() <= min(MOST_VALUES, len(values) // 2)


def _words_of_gaps(name: str, values: Any, texts: Any) -> str:
    """Returns how often each word of `GAPS` is a gap of a column of texts, where it could be a value."""
    import pyarrow.compute as pc

    words = Counter(text for text in texts.filter(pc.is_null(values)).to_pylist() if text)
    return ", ".join(f"{word} in {counted(n, 'row')} of {name}" for word, n in words.items())


@dataclass(frozen=True)
class _Sheet:
    """What is told of a sheet of a workbook, as of a `_Layout`."""

    names: list[str]
    lines: list[int]  # row of the sheet, from 1, of each row
    notes: list[str]
    mark: str = ";"  # decimal commas are usual

    def line(self, row: int) -> int:
        """Returns the row of the sheet, from 1."""
        return self.lines[row]


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
    except Exception as error:  # what openpyxl raises for a damaged file is not bounded
        raise ValueError(f"expected a workbook at {path}, found one that cannot be read ({shortened(error)})") from None
    require_choice(f"the sheet of {path.name}", chosen if title is None else title, titles)
    expect(len(rows) >= 2, f"a row of column names and rows of values in {path.name}", counted(len(rows), "row"))
    used = [i for i, column in enumerate(zip(*rows.values(), strict=True)) if any(cell is not None for cell in column)]
    lines, cells = list(rows), [[row[i] for i in used] for row in rows.values()]
    head = [["" if cell is None else str(cell).strip() for cell in row] for row in cells[:HEAD]]
    at = _header(head, len(head[0]))
    others = ", ".join(other for other in titles if other != chosen)
    notes = [f"the sheet {chosen} is read; --sheet NAME reads another: {others}"] if others and title is None else []
    notes += [f"left out above the names in line {lines[at]}: {shown(' '.join(head[0]).strip())}"] if at else []
    sheet = _Sheet(head[at], lines[at + 1 :], notes)
    columns = _of_cells(sheet, list(map(list, zip(*cells[at + 1 :], strict=True))), written)
    return _noted(pa.table(columns, names=sheet.names), {NOTES: notes, SHEET: chosen})


def _of_cells(sheet: _Sheet, cells: list[list[Any]], written: bool) -> list[Any]:
    """Returns columns of a sheet as Arrow arrays, numbers among texts as they are."""
    import pyarrow as pa

    def is_number(cell: Any) -> bool:
        return isinstance(cell, int | float) and not isinstance(cell, bool)

    if written:
        return [_array_of([None if cell == "" else cell for cell in column]) for column in cells]
    columns = [_array_of([None if isinstance(cell, str) and cell in GAPS else cell for cell in column]) for column in cells]
    neutral = list(columns)
    for i, values in enumerate(columns):
        if pa.types.is_string(values.type):
            both = zip(cells[i], values.to_pylist(), strict=True)
            neutral[i] = pa.array(["0" if is_number(cell) else text for cell, text in both], pa.string())
    texts_of = lambda some: [pa.array(["" if c is None else str(c) for c in cells[i]], pa.string()) for i in some]  # noqa: E731
    settled = _settled(sheet, neutral, texts_of, [])
    for i, values in enumerate(settled):
        if values is not columns[i] and pa.types.is_floating(values.type):
            both = zip(cells[i], values.to_pylist(), strict=True)
            settled[i] = pa.array([float(cell) if is_number(cell) else value for cell, value in both], pa.float64())
        elif pa.types.is_string(values.type):
            settled[i] = columns[i]
    return settled


def _array_of(cells: list[Any]) -> Any:
    import pyarrow as pa

    try:
        return pa.array(cells)
    except (pa.ArrowException, TypeError, OverflowError):
        return pa.array([None if cell is None else str(cell) for cell in cells], pa.string())
