"""What `check` says in sentences: in the terminal, at the head of the page and in ``summary.json``."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vergence.data.image_list import AGAIN
from vergence.decide.conformal import needed_calibration, reportable
from vergence.images.measurements import PROPERTIES
from vergence.utils.checks import counted

__all__ = ["shortened_name"]

NAMED = 3  # images, pairs, groups and files that are named before "and N more"
KINDS = 5  # of other files
LONGEST = 60  # characters of a name
SMALL, SOME = 4, 10  # a reference is small if not even 1 / 4 of the images could be flagged; it is enough if 1 / 10 could


def sentences_of(s: Mapping[str, Any], pairs: Mapping[str, Sequence[Any]], skipped: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the sentences, the most important first, of the other entries of ``summary.json`` and the columns of two tables."""
    flags = _flags(s) if s["judged"] else ""
    parts = [
        flags,
        _reference(s),
        _labels(s),
        _groups(s),
        _leaked(s, pairs),
        _duplicates(pairs),
        _properties(s),
        _files(s, skipped),
    ]
    if s["changes"]:
        parts.append("Read as a viewer shows them: " + "; ".join(f"{k} ({v:,})" for k, v in s["changes"].items()) + ".")
    return [*filter(None, parts), *s["notes"]]


def _listed(texts: Sequence[str], file: str = "") -> str:
    """Returns the first texts, and how many more there are."""
    more = len(texts) - NAMED
    where = f" ({file})" if file else ""
    return "; ".join(texts[:NAMED]) + (f"; and {more:,} more{where}" if more > 0 else "")


def _flags(s: Mapping[str, Any]) -> str:
    """Returns how many are flagged, and what that means."""
    flagged, noun, share = s["flagged"], s["noun"], f"{100 * s['fdr']:g} %"
    head = f"{flagged:,} of {counted(s['images'], noun)} flagged" if flagged else f"No {noun} flagged"
    if s["rate"].startswith("twins"):
        differ = "it differs from its" if flagged == 1 else "they differ from their" if flagged else "none differs from its"
        assumed = f"This assumes that most {noun}s are normal; no two reference {noun}s show the same part."
        return f"{head}: {differ} reference {noun} {'more' if flagged else 'much more'} than most do. {assumed}"
    if s["calibration"] is not None:
        return f"{head}. {_held(s, share) if flagged else _beyond(s)}"
    return f"The most anomalous {noun}s come first. Without a reference none is flagged."


def _held(s: Mapping[str, Any], share: str) -> str:
    """Returns the rate of false alarms with its condition."""
    noun, rate = s["noun"], f"On average at most {share} of flags are false alarms"
    if s["grouped"] == "within":
        return f"{rate}, if new and reference {noun}s of each group come from one source."
    if s["grouped"]:
        return f"{rate}, if new and reference groups come from one source; {s['examples']:,} reference groups calibrate."
    return f"{rate}, if new and reference {noun}s come from one source."


def _beyond(s: Mapping[str, Any]) -> str:
    """Returns how many are less like the reference than all of it, and how many normal ones would be."""
    n, m, noun, beyond, examples = s["calibration"], s["total"], s["noun"], s["beyond"], s["examples"]
    all_of = f"all reference {noun}s of {'their group' if beyond > 1 else 'its group'}" if s["grouped"] == "within" else ""
    all_of = all_of or f"all {n:,} reference {noun}s"
    if not m:
        return "None was judged: all are in the reference, too."
    if not beyond:
        return f"No {noun} is less like the reference than {all_of}."
    verb = "is" if beyond == 1 else "are"
    usual = f"of {m:,} normal {noun}s about {s['expected']:.2g} would be."
    said = f"{counted(beyond, noun)} {verb} less like the reference than {all_of} are; {usual}"
    if SMALL * reportable(examples, m, s["fdr"]).fewest <= m:
        return said
    needed = needed_calibration(m, math.ceil(m / SOME), s["fdr"])
    what = f"reference {noun}s of each group" if s["grouped"] == "within" else "reference groups" if s["grouped"] else ""
    return f"{said} To flag some, give at least {needed:,} {what or f'reference {noun}s'}."


def _reference(s: Mapping[str, Any]) -> str:
    """Returns which reference images are themselves anomalous."""
    if not (names := [shortened_name(name) for name in s["reference_anomalies"]]):
        return ""
    verb, them = ("is itself", "it") if len(names) == 1 else ("are themselves", "them")
    many = counted(len(names), f"reference {s['noun']}")
    said = f"{many} {verb} unlike the others: {_listed(names, 'summary.json')}. Look at {them} first."
    if s["flagged_without"] <= s["flagged"]:
        return said
    they = "it is an anomaly" if len(names) == 1 else "they are anomalies"
    return f"{said} If {they} (--confirm), about {counted(s['flagged_without'], s['noun'])} will be flagged."


def _labels(s: Mapping[str, Any]) -> str:
    """Returns which images fit another label better than their own."""
    if (labels := s["labels"]) is None:
        return ""
    texts = [f"{shortened_name(name)} ({given}, more like {other})" for name, given, other in labels["first"]]
    few = f" {counted(labels['unjudged'], 'image')} with a label of few images: not judged." if labels["unjudged"] else ""
    if labels["compared"]:
        held = f"On average at most {100 * s['fdr']:g} % of these are false alarms, if the reference's labels are right."
        if labels["flagged"]:
            many, verb = counted(labels["flagged"], "image"), "lies" if labels["flagged"] == 1 else "lie"
            return f"{many} {verb} under the wrong label: {_listed(texts, 'items.csv')}. {held}{few}"
        if not labels["beyond"]:
            return f"No label is flagged.{few}"
        many, verb = counted(labels["beyond"], "image"), "fits its" if labels["beyond"] == 1 else "fit their"
        would = f"of {labels['images']:,} right labels about {labels['expected']:.2g} would"
        return f"No label is flagged. {many} {verb} label less than all {labels['compared']} do ({would}): {_listed(texts)}.{few}"
    if not texts:
        return f"No image fits another label better than its own.{few}"
    better = f"{labels['better']:,} of {labels['images']:,} images fit another label better than their own"
    return f"{better}, first of all {_listed(texts)}. Sort by label in the page.{few}"


def _groups(s: Mapping[str, Any]) -> str:
    if not s["groups"]:
        return ""
    why = [f" ({group['why']})" if group["why"] else "" for group in s["groups"]]
    texts = [f"{g['images']:,} like {shortened_name(g['like'])}{said}" for g, said in zip(s["groups"], why, strict=True)]
    verb = "lies" if len(texts) == 1 else "lie"
    return f"{counted(len(texts), 'group')} of {s['noun']}s {verb} apart from all others: {_listed(texts, 'items.csv')}."


def _pairs(pairs: Mapping[str, Sequence[Any]], source: str) -> list[str]:
    every = zip(pairs["path"], pairs["duplicate_of"], pairs["kind"], pairs["source"], strict=True)
    rows = (row[:3] for row in every if row[3] == source)
    return [f"{path} = {of}" if kind == "exact" else f"{path} ~ {of} ({kind})" for path, of, kind in rows]


def _leaked(s: Mapping[str, Any], pairs: Mapping[str, Sequence[Any]]) -> str:
    if s["reference"] is None:
        return ""
    if not s["leaked"]:
        return f"No {s['noun']} is also in the reference."
    verb, listed = "is" if s["leaked"] == 1 else "are", _listed(_pairs(pairs, "reference"), "duplicates.csv")
    return f"{counted(s['leaked'], s['noun'])} {verb} also in the reference (leaked): {listed}."


def _duplicates(pairs: Mapping[str, Sequence[Any]]) -> str:
    texts = _pairs(pairs, "same")
    return f"{counted(len(texts), 'pair')} of duplicates: {_listed(texts, 'duplicates.csv')}." if texts else ""


def _properties(s: Mapping[str, Any]) -> str:
    texts = [f"{count:,} {PROPERTIES[name]}" for name, count in s["properties"].items()]
    return f"Plain properties: {', '.join(texts)}." if texts else ""


def _files(s: Mapping[str, Any], skipped: Mapping[str, Sequence[str]]) -> str:
    rows = zip(skipped["path"], skipped["reason"], strict=True)
    texts = [f"{shortened_name(path)} ({reason})" for path, reason in rows if reason != AGAIN]
    parts = [f"{counted(len(texts), 'file')} could not be read: {_listed(texts, 'skipped.csv')}."] if texts else []
    if s["ignored"]:
        n = sum(s["ignored"].values())
        kinds = ", ".join(f"{v:,} {k or 'without an ending'}" for k, v in list(s["ignored"].items())[:KINDS])
        parts.append(f"{counted(n, 'other file')} {'is not an image' if n == 1 else 'are not images'}: {kinds}.")
    return " ".join(parts)


def shortened_name(name: str) -> str:
    """Returns a name whose end, which tells files apart, is kept.

    Example:
        >>> shortened_name("a" * 60 + "_0001.png")[-9:]
        '_0001.png'
    """
    return name if len(name) <= LONGEST else f"…{name[-LONGEST + 1 :]}"
