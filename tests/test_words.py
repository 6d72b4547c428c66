"""One vocabulary: words that pages, messages and docstrings do not use, and the length of sentences on pages for users."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {  # and what is written instead
    r"(?<!-)\bcontrols?\b(?!\"| (characters?|sites?|wells?|\{noun\}))": "baseline",
    r"\bforeign\b": "out-of-distribution, unknown",
    r"\bbeside\b": "next to, compared with",
    r"\bprocessor (seconds|s|ms|milliseconds)\b": "CPU seconds",
    r"\bbehind the closed form\b": "on top of the default encoder",
    r"\blearned the closed form\b": "distilled from the default encoder",
    r"\blevel with\b": "on a par with",
    r"\bby (kNN|the probe)\b": "in kNN accuracy, on the linear probe",
    r"\bhas \.\d": "reaches",
    r"\bledgers?\b": "results log",
}
GONE = {  # one word for one thing: what is written no more in the rooms and on the pages below, and what instead
    r"\bpictures?\b(?!\")": "image",
    r"\bordinary\b(?! least squares)": "normal",
    r"\b(un)?typical(ly)?\b": "normal, common, most",
    r"(?<!as )(?<!than )\busual\b|\bunusual(ly)?\b(?! images, duplicates)": "normal, default, common; anomalous",
    r"\b(is|are|be|one) fine\b|\bgood (images?|items?|ones?)\b": "normal, a false alarm",
    r"\bodd(er|est|ity|ities)?\b(?! number|, at)|\bstrang(e|er|est|eness)\b(?!'s)": "anomaly, anomalous",
    r"(?<!conformal )\boutl(ier|ying)\w*\b(?! with)": "anomaly, anomalous",  # titles of papers keep theirs
    r"\bcrowds?\b": "cluster",
    r"\bknown (ones?|images?|vectors?|items?|folder)\b|\bof known\b": "reference",
    r"\bnear cop(y|ies)\b|\bcopies of (known|images?)\b": "duplicates",
    r"\bimages? (that are |are )?alike\b": "duplicates, similar",
    r"\balso in the (other source|reference)\b": "leaked, duplicates of reference images",
    r"\b(nearest|first) looks?\b": "region, first pass",
    r"\b(anomalous|marked|framed|small) places?\b|\bplaces at\b": "region",
    r"--mark\b": "--region-rate",
    r"\b(one|each|every|all|most|of|several) levels?\b(?! of (gray|confidence)| up\b|\. Without)": "feature set",
    r"\b(nats|numbers?|one|pixels|positions|means|bytes|processes) an? (shorter )?(row|line|side|image|item|device)\b": "per",
    r"(?<!standard )\bnormal (distribution|density|law)s?\b": "Gaussian",
    r"\b(is|are|was|were) told\b(?! (apart|to))|\bis said of\b": "reported",
}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += [page for folder in ("docs", "experiments") for page in sorted((ROOT / folder).rglob("*.md"))]
PAGES = [page for page in PAGES if "decisions" not in page.parts]  # dated records keep the words of their day
SHORT = [page for page in PAGES if page.parent.name in ("tutorials", "how-to") or page.name in ("README.md", "choosing.md")]
SHORT = [page for page in SHORT if "experiments" not in page.parts]
LONGEST = 25  # words of a sentence


def prose(text):
    """Returns the running text of a page: no code, tables, links' targets, headings or comments."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|<[^>\n]+>", "", text, flags=re.DOTALL)
    text = "\n".join(line for line in text.split("\n") if not re.match(r" {4}|\||#", line))
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`\n]*`", "code", text))


def sentences(text):
    """Yields the sentences of running text; an item of a list, and what follows a colon at the end of a line, is one."""
    for block in re.split(r"\n\s*\n|(?:^|\n)\s*(?:[-*]|\d+\.) ", prose(text)):
        yield from re.split(r"(?<=[.!?:;])\s+", " ".join(block.split()))


def strings(file):
    """Returns the strings and comments of a Python file, a line each."""
    kinds = (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1))
    tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
    return "\n".join(token.string for token in tokens if token.type in kinds)


def found(text, words=FORBIDDEN):
    return [(match[0], instead) for word, instead in words.items() for match in re.finditer(word, text, re.IGNORECASE)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_the_words_of_the_field(page):
    assert found(prose(page.read_text()), FORBIDDEN | GONE) == []


def test_messages_and_docstrings_use_the_words_of_the_field():
    src = ROOT / "src" / "vergence"
    files = [file for kind in ("py", "html", "js") for file in src.rglob(f"*.{kind}")]
    texts = {file.relative_to(src).as_posix(): strings(file) if file.suffix == ".py" else file.read_text() for file in files}
    wrong = {name: found(text, FORBIDDEN | GONE) for name, text in texts.items()}
    assert {name: words for name, words in wrong.items() if words} == {}


@pytest.mark.parametrize("page", SHORT, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_for_users_are_short(page):
    assert [one for one in sentences(page.read_text()) if len(one.split()) > LONGEST] == []


MEASURED = [page for page in PAGES if "docs" in page.parts and "reference" not in page.parts]


@pytest.mark.parametrize("page", MEASURED, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_not_full_of_numbers(page):
    text = prose(page.read_text())
    numerals = re.findall(r"(?<![\w-])\d[\d,.]*", text)
    assert len(numerals) <= max(5, 0.05 * len(text.split())), "measurements belong next to their experiment"


def test_the_rules_find_what_they_forbid():
    assert len(found("A foreign control, level with one beside the ledger, by kNN, has .910 in 3 processor seconds")) == 8
    assert len(found("Ordinary pictures look at known ones; an odd copy is fine, 2 nats a row at each level", GONE)) == 7
    assert found("A normal image as usual, in its place; the odd number of gray levels is known", GONE) == []
    assert found("Control characters; an aria-controls attribute is code") == []
    assert list(sentences("One two.\n- three `code here` [four](five.md)")) == ["One two.", "three code four"]
    assert "".join(sentences("```\nno no\n```\n\n| six |\n    seven\n")) == ""
