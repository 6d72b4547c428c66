"""Dates as people write them: the format of a column of texts, and days since 1970-01-01.

Formats are those of `datetime.strptime`, with ``%q`` for a quarter (``Q4``); a time and a zone may follow in each cell. The
format that begins with the year, as in ISO 8601, is called "".
"""

import re
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import numpy as np

from vergence.utils.dtypes import Array

__all__: list[str] = []

YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})")
TIME = re.compile(
    r"(.*?)(?:(?:T| +)(\d{1,2}):(\d\d)(?::(\d\d(?:[.,]\d+)?))?(?: ?([AP]M))?(?: ?(Z|UTC|[+-]\d\d:?(?:\d\d)?))?)?", re.I
)
NUMERIC = [f"{day}{mark}{year}" for mark in "/-" for day in (f"%d{mark}%m", f"%m{mark}%d") for year in ("%Y", "%y")]
NAMED = ["%d %B %Y", "%d %b %Y", "%d. %B %Y", "%d-%b-%Y", "%d-%b-%y", "%d/%b/%Y", "%d%b%Y", "%B %d, %Y", "%b %d, %Y", "%b %d %Y"]
MONTHS = ["%Y-%m", "%m/%Y", "%B %Y", "%b %Y", "%b-%Y", "%b-%y", "%Y %b"]
QUARTERS = ["%q %Y", "%Y %q", "%Y-%q", "%Y%q", "%q/%Y", "%q-%Y"]
FORMATS = ["", *NUMERIC, "%d.%m.%Y", "%d.%m.%y", *NAMED, *MONTHS, *QUARTERS]  # with dots the day comes first
EPOCH, DAY = datetime(1970, 1, 1), timedelta(days=1)
PERIODS = {"year": (365.2425, 365.0), "week": (7.0, 14.0), "day": (1.0, 2.0)}  # days, and days that a column has to span
PARTS = tuple(f"{cycle}_{wave}" for cycle in PERIODS for wave in ("sine", "cosine"))
LEAST, PER_PERIOD = 20, 1.5  # different dates, at least: in all, and in each period


def day_of(text: str, form: str) -> float | None:
    """Returns a written date as days since 1970-01-01 (UTC where it has a zone), None where it is no date of this format."""
    text = text.strip()
    try:
        if "%H" in form or "%I" in form:
            moment = datetime.strptime(text, form)
            return (moment.replace(tzinfo=None) - (moment.utcoffset() or 0 * DAY) - EPOCH) / DAY
        found = TIME.fullmatch(text)
        date, *time = found.groups() if found else (text, None)
        return (_date(date, form) - EPOCH) / DAY + (_seconds(*time) / 86_400 if time[0] else 0.0)
    except ValueError:
        return None


def _date(text: str, form: str) -> datetime:
    if found := YEAR_FIRST.fullmatch(text):
        return datetime(int(found[1]), int(found[3]), int(found[4]))
    if not form:
        raise ValueError("no year first")
    if "%q" in form:
        text = re.sub(r"(?i)(?<![a-z])Q([1-4])", lambda quarter: f"{3 * int(quarter[1]) - 2:02d}", text)
    return datetime.strptime(text, form.replace("%q", "%m"))


def _seconds(hour: str, minute: str, second: str | None, half: str | None, zone: str | None) -> float:
    """Returns the seconds of a time of the day in UTC."""
    hours = int(hour) % 12 + 12 * (half.upper() == "PM") if half else int(hour)
    if hours > 24 or int(minute) > 59:
        raise ValueError("no time")
    digits = (zone or "").upper().strip("ZUTC").replace(":", "")
    offset = int(f"{digits[0]}1") * (3600 * int(digits[1:3]) + 60 * int(digits[3:] or 0)) if digits else 0
    return 3600.0 * hours + 60 * int(minute) + float((second or "0").replace(",", ".")) - offset


def formats_of(texts: Collection[str], asked: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the formats in which all texts are dates: none, one, or several of different days; what is asked for first."""
    first = next(iter(texts), "").strip()
    if not any(map(str.isdigit, first)):
        return ()
    timed = TIME.fullmatch(first)
    shape = _shape(timed[1] if timed else first)
    likely = [form for form in FORMATS if not form or _shape(re.sub(r"%q", "aQ9", form)) == shape]
    found: dict[tuple[float | None, ...], str] = {}
    for form in (*asked, *likely):
        if day_of(first, form) is None:
            continue
        days = tuple(day_of(text, form) for text in texts)
        if None not in days:
            if form in asked:
                return (form,)
            found.setdefault(days, form)
    return tuple(found.values())


def _shape(text: str) -> str:
    """Returns a text or a format with a letter for each number, word or directive, which has to be the same for both."""
    return re.sub(r"%[A-Za-z]|\d+|[^\W\d_]+", "x", text)


def cycles_of(days: Array) -> tuple[str, ...]:
    """Returns the periods, of a year, a week and a day, that days since 1970-01-01 (N,) may tell something of.

    The days have to span more than a year, two weeks or two days, with more than one date in each period, on average.
    """
    different = np.unique(days[~np.isnan(days)])
    span = float(np.ptp(different)) if len(different) >= LEAST else 0.0
    found = []
    for cycle, (period, least) in PERIODS.items():
        seen = np.unique(np.floor(different) if cycle != "day" else different)
        vary = np.ptp(np.floor(seen % period / period * 12)) > 0 if len(seen) else False
        if span > least and vary and len(seen) > PER_PERIOD * span / period:
            found.append(cycle)
    return tuple(found)


def wave_of(days: Array, part: str) -> Array:
    """Returns the sine or cosine of days since 1970-01-01 in a period, such as ``year_sine``, (N,) in [-1, 1]."""
    cycle, _, wave = part.partition("_")
    angle = 2 * np.pi * days / PERIODS[cycle][0]
    return np.asarray(np.sin(angle) if wave == "sine" else np.cos(angle))
