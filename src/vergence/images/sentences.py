"""What `check` says in sentences: in the terminal, at the head of the page and in ``summary.json``."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vergence.data.image_list import AGAIN
from vergence.decide.conformal import needed_calibration, reportable
from vergence.images.measurements import PROPERTIES
from vergence.utils.checks import counted

__all__ = ["listed", "shortened_name"]

NAMED = 3  # images, pairs, groups and files that are named before "and N more"
KINDS = 5  # of other files
LONGEST = 60  # characters of a name
COMPARED = (
    "Duplicates are equal images, or resized, saved again, cropped, brightened, marked, mirrored or rotated ones. "
    "Images without structure are found only if they are equal."
)
SMALL, SOME = 4, 10  # a reference is small if not even 1 / 4 of the images could be flagged; it is enough if 1 / 10 could


def sentences_of(s: Mapping[str, Any], pairs: Mapping[str, Sequence[Any]], skipped: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the sentences, the answer and its condition first, of the entries of ``summary.json`` and two tables."""
    few = not (s["judged"] or s["only"])
    first = _flags(s) if s["judged"] else s["notes"] if few else []
    parts = [*first, _reference(s), _labels(s), _groups(s), _leaked(s, pairs), _duplicates(s, pairs)]
    parts = [*filter(None, [*parts, _properties(s), _files(s, skipped)])]
    if "duplicates" in s["only"]:
        parts.insert(1, COMPARED)  # the condition of the first sentence
    if s["changes"]:
        parts.append("Read as a viewer shows them: " + "; ".join(f"{k} ({v:,})" for k, v in s["changes"].items()) + ".")
    return [*parts, *([] if few else s["notes"])]


def listed(texts: Sequence[str], file: str = "items.csv", total: int = 0) -> str:
    """Returns the first texts, and how many more there are, of so many or of as many as there are texts."""
    more = max(total, len(texts)) - NAMED
    return "; ".join(texts[:NAMED]) + (f"; and {more:,} more ({file})" if more > 0 else "")


def _flags(s: Mapping[str, Any]) -> list[str]:
    """Returns how many are flagged, and on what condition."""
    flagged, noun = s["flagged"], s["noun"]
    if s["rate"] == "none":
        first = f"{counted(s['images'], noun)} ranked, the most anomalous first."
        return [first, "Nothing is flagged without a reference (`against`)."]
    head = f"{flagged:,} of {counted(s['images'], noun)} flagged." if flagged else f"No {noun} flagged."
    if s["rate"].startswith("twins"):
        return [head, f"No error rate is stated: each part has one reference {noun}. Flags assume that most {noun}s are normal."]
    return [head, _rate(s) if flagged else _beyond(s)]


def _rate(s: Mapping[str, Any]) -> str:
    """Returns the rate of false alarms with its condition."""
    noun, marked = s["noun"], ", together with the anomalies that you marked," if s["confirmed"] else ""
    rate = f"On average at most {100 * s['fdr']:g} % of flags{marked} are false alarms"
    if s["grouped"] == "within":
        return f"{rate}. This holds if the new and reference {noun}s of each group come from one source."
    if s["grouped"]:
        return f"{rate}, if new and reference groups come from one source. {s['examples']:,} reference groups count once each."
    return f"{rate}, if new and reference {noun}s come from one source."


def _beyond(s: Mapping[str, Any]) -> str:
    """Returns how many score above all of the reference, and how many normal ones would."""
    n, m, noun, beyond, examples = s["calibration"], s["total"], s["noun"], s["beyond"], s["examples"]
    if not m:
        return f"None was judged: all {noun}s are in the reference{' or marked' * bool(s['confirmed'])}."
    within = s["grouped"] == "within"
    above = f"above all reference {noun}s of {'their' if beyond > 1 else 'its'} group"
    above = above if within else f"above all {n:,} reference {noun}s"
    if not beyond:
        return f"No {noun} scores {above}."
    score = f"{beyond:,} of {counted(m, noun)} {'scores' if beyond == 1 else 'score'} {above}"
    normal = f"{score}; if all were normal, about {s['expected']:.2g} would."
    fewest = reportable(examples, m + s["confirmed"], s["fdr"]).fewest - s["confirmed"]  # that are flagged, if any is
    if SMALL * fewest <= m:
        few = "" if beyond >= fewest or within else f" With this reference, either none or at least {fewest} are flagged."
        return normal + few
    needed = needed_calibration(m, math.ceil(m / SOME), s["fdr"])
    what = f"reference {noun}s of each group" if within else "reference groups" if s["grouped"] else f"reference {noun}s"
    return f"{normal} To flag some, give at least {needed:,} {what}."


def _reference(s: Mapping[str, Any]) -> str:
    """Returns which reference images are themselves anomalous."""
    if not (names := [shortened_name(name) for name in s["reference_anomalies"]]):
        return ""
    verb, them = ("has an extreme score", "it") if len(names) == 1 else ("have extreme scores", "them")
    many = counted(len(names), f"reference {s['noun']}")
    text = f"{many} {verb}: {listed(names, 'summary.json')}. Check {them} first."
    if s["flagged_without"] <= s["flagged"]:
        return text
    return f"{text} Without {them} (`confirmed`), {counted(s['flagged_without'], s['noun'])} would be flagged."


def _labels(s: Mapping[str, Any]) -> str:
    """Returns which images fit another label better than their own."""
    if (labels := s["labels"]) is None:
        return ""
    texts = [f"{shortened_name(name)} ({given}, more like {other})" for name, given, other in labels["first"]]
    few = f" Not judged: {counted(labels['unjudged'], 'image')} whose label has too few images." if labels["unjudged"] else ""
    if labels["compared"]:
        held = f"On average at most {100 * s['fdr']:g} % of these are false alarms, if the reference's labels are right."
        if labels["flagged"]:
            return f"{counted(labels['flagged'], 'image')} flagged with a wrong label: {listed(texts)}. {held}{few}"
        if not labels["beyond"]:
            return f"No label is flagged.{few}"
        many, verb = counted(labels["beyond"], "image"), "fits its" if labels["beyond"] == 1 else "fit their"
        would = f"if all labels were right, about {labels['expected']:.2g} would"
        return f"No label is flagged. {many} {verb} label less than all {labels['compared']}; {would}: {listed(texts)}.{few}"
    if not texts:
        return f"No image fits another label better than its own.{few}"
    better = f"{labels['better']:,} of {labels['images']:,} images fit another label better than their own"
    return f"{better}: {listed(texts, total=labels['better'])}. On the page, sort by 'least fitting label first'.{few}"


def _groups(s: Mapping[str, Any]) -> str:
    if not s["groups"]:
        return ""
    why = [f" ({group['why']})" if group["why"] else "" for group in s["groups"]]
    texts = [f"{g['images']:,} like {shortened_name(g['like'])}{text}" for g, text in zip(s["groups"], why, strict=True)]
    return f"{counted(len(texts), 'group')} of similar {s['noun']}s apart from all others: {listed(texts)}."


def _pairs(pairs: Mapping[str, Sequence[Any]], source: str) -> list[str]:
    every = zip(pairs["path"], pairs["duplicate_of"], pairs["kind"], pairs["source"], strict=True)
    return [f"{shortened_name(path)} and {shortened_name(of)} ({kind})" for path, of, kind, where in every if where == source]


def _leaked(s: Mapping[str, Any], pairs: Mapping[str, Sequence[Any]]) -> str:
    texts, twins = _pairs(pairs, "reference"), s["rate"].startswith("twins")  # which show the part of a reference image
    if s["reference"] is None or (twins and not texts):
        return ""
    if not texts:
        return "No image leaked: none is a duplicate of a reference image."
    they = "it is a duplicate of a reference image" if s["leaked"] == 1 else "they are duplicates of reference images"
    head = f"{s['leaked']:,} of {counted(s['images'], 'image')} leaked: {they}"
    return f"{head}. Pairs: {listed(texts, 'duplicates.csv')}."


def _duplicates(s: Mapping[str, Any], pairs: Mapping[str, Sequence[Any]]) -> str:
    texts = _pairs(pairs, "same")
    if not texts:
        return "No duplicates." if "duplicates" in s["only"] and s["reference"] is None else ""
    unlike = [" and ".join(map(shortened_name, pair)) for pair in (s["labels"] or {"unlike": []})["unlike"]]
    have = f"{len(unlike):,} of these {'has' if len(unlike) == 1 else 'have'} different labels"
    labels = f" {have}, so `keep='best'` keeps both images: {listed(unlike, 'summary.json')}." if unlike else ""
    return f"{counted(len(texts), 'pair')} of duplicates: {listed(texts, 'duplicates.csv')}.{labels}"


def _properties(s: Mapping[str, Any]) -> str:
    texts = [f"{count:,} {PROPERTIES[name]}" for name, count in s["properties"].items()]
    if not texts:
        return "No plain property stands out." if s["only"] == ["properties"] else ""
    return f"{'Also' if s['judged'] else 'Properties'}: {', '.join(texts)}."


def _files(s: Mapping[str, Any], skipped: Mapping[str, Sequence[str]]) -> str:
    rows = zip(skipped["path"], skipped["reason"], strict=True)
    texts = [f"{shortened_name(path)} ({reason})" for path, reason in rows if reason != AGAIN]
    parts = [f"{counted(len(texts), 'file')} could not be read: {listed(texts, 'skipped.csv')}."] if texts else []
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
