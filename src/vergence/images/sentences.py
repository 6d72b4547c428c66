"""What `check` says in sentences: in the terminal, at the head of the page and in ``summary.json``."""

from collections.abc import Mapping, Sequence
from typing import Any

from vergence.decide.conformal import needed_calibration, reportable
from vergence.images.measurements import PROPERTIES
from vergence.utils.checks import counted

__all__ = ["shortened_name"]

NAMED = 3  # pictures, pairs, groups and files that are named before "and N more"
KINDS = 5  # of other files
LONGEST = 60  # characters of a name


def sentences_of(s: Mapping[str, Any], copies: Mapping[str, Sequence[Any]], skipped: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the sentences, the most important first, of the other entries of ``summary.json`` and the columns of two tables."""
    parts = [_flags(s) if s["judged"] else "", _groups(s), _leaks(s, copies), _copies(copies), _properties(s), _files(s, skipped)]
    if s["changes"]:
        parts.append("Read as a viewer shows them: " + "; ".join(f"{k} ({v:,})" for k, v in s["changes"].items()) + ".")
    return [*filter(None, parts), *s["notes"]]


def _listed(texts: Sequence[str], file: str = "") -> str:
    """Returns the first texts, and how many more there are."""
    more = len(texts) - NAMED
    where = f" ({file})" if file else ""
    return "; ".join(texts[:NAMED]) + (f"; and {more:,} more{where}" if more > 0 else "")


def _flags(s: Mapping[str, Any]) -> str:
    n, flagged, noun, share = s["pictures"], s["flagged"], s["noun"], f"{100 * s['fdr']:g} %"
    if not flagged:
        return _nothing(s)
    fine = s["fdr"] * flagged
    about = f"about {round(fine):,} of them will be fine" if fine >= 1 else "perhaps one of them will be fine"
    if s["calibration"] is None:
        return f"Look at {flagged:,} of {counted(n, noun)}: {about} (an estimate; none is known to be ordinary)."
    return f"Look at {flagged:,} of {counted(n, noun)}: {about} (at most {share} on average, whatever the {noun}s look like)."


def _nothing(s: Mapping[str, Any]) -> str:
    n, noun, share = s["pictures"], s["noun"], f"{100 * s['fdr']:g} %"
    if s["calibration"] is not None and (fewest := reportable(s["calibration"], n, s["fdr"]).fewest) > 1:
        needed = 2 * needed_calibration(n, 1, s["fdr"])
        return (
            f"No {noun} can be flagged at a rate of {share} unless {fewest:,} of {n:,} are unusual: too few known ones. "
            f"With {needed:,} known {noun}s even one could be; a larger rate (--fdr) needs fewer."
        )
    known = "" if s["calibration"] is not None else " Compared with known pictures (--against) more is found."
    return f"None of {counted(n, noun)} can be flagged at a rate of {share}. The order still helps: start at the top.{known}"


def _groups(s: Mapping[str, Any]) -> str:
    if not s["groups"]:
        return ""
    texts = [f"{group['pictures']:,} like {shortened_name(group['like'])}" for group in s["groups"]]
    verb = "lies" if len(texts) == 1 else "lie"
    return f"{counted(len(texts), 'group')} of {s['noun']}s {verb} apart from all others: {_listed(texts, 'items.csv')}."


def _pairs(copies: Mapping[str, Sequence[Any]], other: str) -> list[str]:
    rows = zip(copies["path"], copies["copy_of"], copies["kind"], copies["other"], strict=True)
    return [
        f"{path} = {of}" if kind == "exact" else f"{path} ~ {of} ({kind})" for path, of, kind, where in rows if where == other
    ]


def _leaks(s: Mapping[str, Any], copies: Mapping[str, Sequence[Any]]) -> str:
    if s["known"] is None:
        return ""
    if not s["leaks"]:
        return f"No {s['noun']} is also in the other source."
    verb = "is" if s["leaks"] == 1 else "are"
    return f"{counted(s['leaks'], s['noun'])} {verb} also in the other source: {_listed(_pairs(copies, 'yes'), 'copies.csv')}."


def _copies(copies: Mapping[str, Sequence[Any]]) -> str:
    pairs = _pairs(copies, "no")
    return f"{counted(len(pairs), 'pair')} of copies: {_listed(pairs, 'copies.csv')}." if pairs else ""


def _properties(s: Mapping[str, Any]) -> str:
    texts = [f"{count:,} {PROPERTIES[name]}" for name, count in s["properties"].items()]
    return f"Plain properties: {', '.join(texts)}." if texts else ""


def _files(s: Mapping[str, Any], skipped: Mapping[str, Sequence[str]]) -> str:
    texts = [f"{shortened_name(path)} ({reason})" for path, reason in zip(skipped["path"], skipped["reason"], strict=True)]
    parts = [f"{counted(len(texts), 'file')} could not be read: {_listed(texts, 'skipped.csv')}."] if texts else []
    if s["ignored"]:
        n = sum(s["ignored"].values())
        kinds = ", ".join(f"{v:,} {k or 'without an ending'}" for k, v in list(s["ignored"].items())[:KINDS])
        parts.append(f"{counted(n, 'other file')} {'is' if n == 1 else 'are'} no picture: {kinds}.")
    return " ".join(parts)


def shortened_name(name: str) -> str:
    """Returns a name whose end, which tells files apart, is kept.

    Example:
        >>> shortened_name("a" * 60 + "_0001.png")[-9:]
        '_0001.png'
    """
    return name if len(name) <= LONGEST else f"…{name[-LONGEST + 1 :]}"
