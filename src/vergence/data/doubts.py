"""What to ask of a table: identifiers that repeat, values that differ by case alone, codes for gaps, dates of two formats."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from vergence.data.tables import Column, different_texts, held
from vergence.utils.checks import counted
from vergence.utils.dtypes import Array

__all__: list[str] = []

WORDS = (
    "ids?|subject|subj|patient|person|participant|individual|animal|firm|company|plot|site|school|student|worker|household|family"
)
WORDS += "|user|customer|store|hospital|clinic|center|device|sensor|machine|batch"
NAMED = re.compile(rf"(.*[_ .-])?(?i:{WORDS})([_ .-]?(?i:id|no|nr|number|code|name))?|.*[a-z](ID|Id)")
CODE = re.compile(r"-1|-?(9{2,}|8{2,})")  # of a gap
LEAST, MANY = 5, 20  # values of an identifier that repeats, by its name or by its rows alone
SHARE = 0.05  # of the rows, that have a code


def doubts(table: Any, columns: Iterable[Column], *, grouped: bool = False) -> list[str]:
    """Returns questions about columns of an Arrow table that are used or left out; ``grouped`` where groups are known."""
    found = []
    for column in columns:
        values = table[column.name]
        if len(column.forms) > 1:
            found.append(f"{column.name} holds dates as {' or '.join(column.forms)}: `dates=FORMAT`?")
        elif column.kind in ("number", "category", "text"):
            asked = [] if grouped else _repeated(column.name, values)
            found += [*asked, *(_codes(column.name, values) if column.kind == "number" else _alike(column.name, values))]
    return found


def _repeated(name: str, values: Any) -> list[str]:
    """Asks whether a column is groups: it is named like an identifier and repeats, or its values have neighboring rows each."""
    if held(values.type) == "real" or values.null_count:
        return []
    code = values.dictionary_encode().combine_chunks().indices.to_numpy()  # leaves a dictionary as it is
    counts = np.bincount(code)
    counts = counts[counts > 0]
    steady = (counts == np.bincount(counts).argmax()).mean() > 0.5
    neighbors = steady and counts.min() > 1 and len(counts) >= MANY and (np.diff(code) != 0).sum() + 1 == len(counts)
    if len(counts) < LEAST or len(code) < 1.5 * len(counts) or not (NAMED.fullmatch(name) or neighbors):
        return []
    about = "" if np.ptp(counts) == 0 else "about "
    return [f"{name} has {len(counts):,} values, {about}{len(code) / len(counts):.0f} rows each: `groups={name}`?"]


def _alike(name: str, values: Any) -> list[str]:
    """Names texts that differ by case or spaces alone."""
    same: dict[str, list[str]] = {}
    for text in different_texts(values):
        same.setdefault("".join(text.casefold().split()), []).append(text)
    first = next((texts for texts in same.values() if len(texts) > 1), [])
    return [f"{name} has {' and '.join(map(repr, first))}, which differ by case or spaces alone: one value?"] if first else []


def _codes(name: str, values: Any) -> list[str]:
    """Names a value such as -999 in many rows, apart from the others."""
    import pyarrow as pa

    x: Array = values.cast(pa.float64(), safe=False).to_numpy()
    x = x[np.isfinite(x)]
    for end in (x.min(), x.max()) if len(x) else ():
        rest = np.unique(x[x != end]) if CODE.fullmatch(f"{end:.10g}") else x[:0]
        n = int((x == end).sum())
        if n < SHARE * len(x) or len(rest) < LEAST:
            continue
        apart = np.abs(rest - end).min() > np.diff(rest).max() or (end == -1 and rest[0] >= 0)
        if apart:
            code = f"{end:g} in {counted(n, 'row')} ({n / len(x):.0%})"
            return [f"{name} is {code}, apart from all other values: a code for a gap? leave such cells empty"]
    return []
