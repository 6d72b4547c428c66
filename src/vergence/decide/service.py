"""Decisions over HTTP: scores, vectors or images in, p-values, flags at a rate and alarms out, as JSON; health and metrics.

Needs the extra ``serve``. No code is run from what is posted, and no path in it is opened.
"""

import base64
import io
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vergence.data.images import MAX_PIXELS, header
from vergence.decide.conformal import at_most, fpr_threshold
from vergence.decide.core import Calibrated
from vergence.decide.decisions import calibrate
from vergence.decide.inputs import Values, as_values
from vergence.decide.streams import Monitor
from vergence.utils.checks import counted, expect, require_count, require_within, shortened

# Rows of JSON -> scores (m,), NaN for those that cannot be scored, and the error of each.
RowScorer = Callable[[Sequence[Any]], tuple[np.ndarray, Sequence[str]]]
FIELDS = ("score", "p_value", "q_value", "flag", "alarm")  # of each item, next to its name and error
COUNTED = ("items", "flags", "alarms", "errors")


class Service:
    """Decisions on items that are posted, by the scores of calibration items.

    Args:
        calibration: Scores (n,) of normal items that no fit has seen.
        scorers: How rows are scored, for ``vectors`` or ``images``; ``scores`` are always taken. One call at a time.
        fdr: False-discovery rate of the flags among the items of one request, in (0, 1).
        alarm: Level of each single item: the alarm is p <= ``alarm``, in (0, 1).
        fpr: Instead, the largest share of normal items with an alarm, with ``confidence``.
        confidence: Probability of that, over calibration sets.
        items: Most items of a request.
        megabytes: Largest size of a request, in MB.

    Example:
        >>> service = Service(np.arange(999.0), {})
        >>> answer = service.answer("scores", [3.0, 5000.0, None])
        >>> [item["alarm"] for item in answer["items"]], answer["items"][2]["error"]
        ([False, True, None], 'not a number')
    """

    def __init__(
        self,
        calibration: Values,
        scorers: Mapping[str, RowScorer],
        *,
        fdr: float = 0.1,
        alarm: float = 0.01,
        fpr: float | None = None,
        confidence: float = 0.95,
        items: int = 1000,
        megabytes: int = 16,
    ) -> None:
        require_within("(0, 1)", fdr=fdr, alarm=alarm)
        require_count(1, items=items, megabytes=megabytes)
        self.calibration = as_values("calibration scores", calibration)
        needed, n = math.ceil(1 / alarm) - 1, len(self.calibration)
        enough = fpr is not None or n >= needed
        expect(enough, f"at least {needed:,} calibration scores for alarms at {alarm:g}", f"{n:,}", "give more, or raise `alarm`")
        self.certificate = None if fpr is None else fpr_threshold(self.calibration, fpr, confidence)
        calibrate(self.calibration, self.calibration[:1], fdr=fdr)  # refuses what no request could use
        self.monitor, self.scorers = Monitor(self.calibration), {"scores": _as_scores, **scorers}
        self.fdr, self.alarm, self.items, self.bytes = fdr, alarm, items, megabytes << 20
        self._scoring, self._counting, self.registry = threading.Lock(), threading.Lock(), CollectorRegistry()
        of: dict[str, Any] = {"namespace": "vergence", "registry": self.registry}
        self.requests = Counter("requests", "Requests by path and status.", ["path", "status"], **of)
        self.counts = {name: Counter(name, f"{name} of posted tables.".capitalize(), **of) for name in COUNTED}
        self.drift = Gauge("drift_log_wealth", "Log wealth against no change, in nats.", **of)
        self.changed = Gauge("drift_alarm", "Whether what is posted has changed.", **of)

    def answer(self, kind: str, rows: Sequence[Any], names: Sequence[str] | None = None) -> dict[str, Any]:
        """Returns the decisions on rows of a kind, in order; a row that cannot be scored has an error."""
        with self._scoring:
            scores, errors = self.scorers[kind](rows)
        finite = np.flatnonzero(np.isfinite(scores))
        items: list[dict[str, Any]] = [{"error": error or "not a number"} | dict.fromkeys(FIELDS) for error in errors]
        found = calibrate(self.calibration, scores[finite], fdr=self.fdr) if len(finite) else None
        if found is not None:
            certain = None if self.certificate is None else scores[finite] > self.certificate.threshold
            alarms = at_most(found.p_value, self.alarm) if certain is None else certain
            columns = (scores[finite], found.p_value, found.q_value, found.flag, np.asarray(alarms))
            for i, values in zip(finite, zip(*(column.tolist() for column in columns), strict=True), strict=True):
                items[i] = {"error": "", **dict(zip(FIELDS, values, strict=True))}
        with self._counting:
            if len(finite):
                self.monitor.update(scores[finite])
            found_of = (len(items), *(sum(bool(item[name]) for item in items) for name in ("flag", "alarm", "error")))
            for counter, n in zip(self.counts.values(), found_of, strict=True):
                counter.inc(n)
            self.drift.set(self.monitor.log_wealth)
            self.changed.set(self.monitor.alarmed)
        named = names or [str(i + 1) for i in range(len(items))]
        return {
            "items": [{"name": name, **item} for name, item in zip(named, items, strict=True)],
            "sentences": [] if found is None else found.sentences,
            "calibration": len(self.calibration),
            "drift": self.monitor.drift if self.monitor.alarmed else "",
        }

    def app(self) -> Any:
        """Returns the application: POST /scores, /vectors, /images as far as they can be scored; GET /health and /metrics."""
        routes = [Route(f"/{kind}", self._post, methods=["POST"]) for kind in self.scorers]
        routes += [Route("/health", self._health), Route("/metrics", self._metrics)]
        return Starlette(routes=routes, exception_handlers={HTTPException: self._refused, ValueError: self._refused})

    async def _post(self, request: Request) -> Response:
        kind, form = request.url.path[1:], request.headers.get("content-type", "").partition(";")[0].strip().lower()
        image = kind == "images" and form.startswith("image/")
        _require(image or form == "application/json", 415, "content of type application/json", form or "none")
        body = bytearray()
        async for part in request.stream():
            body += part
            _require(len(body) <= self.bytes, 413, f"at most {self.bytes:,} bytes", "more")
        answer = await run_in_threadpool(self._of_body, kind, bytes(body), image)
        return self._response(request, 200, answer)

    def _of_body(self, kind: str, body: bytes, image: bool) -> dict[str, Any]:
        if image:
            return self.answer(kind, [body])
        try:
            content = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, f"expected JSON, found something else: {shortened(error)}") from None
        rows = content.get(kind) if isinstance(content, dict) else None
        _require(isinstance(rows, list), 422, f'an object with a list "{kind}"', f"a {type(content).__name__}")
        assert isinstance(rows, list), "see above"
        unknown = sorted(content.keys() - {kind, "names"})
        _require(not unknown, 422, f'only "{kind}" and "names"', f"{unknown[:1]}")
        _require(len(rows) <= self.items, 413, f"at most {counted(self.items, 'item')}", f"{len(rows):,}")
        names = content.get("names", [str(i + 1) for i in range(len(rows))])
        fits = isinstance(names, list) and len(names) == len(rows) and all(isinstance(x, str) and x.isprintable() for x in names)
        _require(fits, 422, f"{len(rows)} printable texts as names", "others")
        return self.answer(kind, rows, names)

    async def _health(self, request: Request) -> Response:
        monitor = {"items": self.monitor.items, "alarm": self.monitor.alarmed, "drift": self.monitor.drift}
        about = {"takes": list(self.scorers), "calibration": len(self.calibration), "fdr": self.fdr, "monitor": monitor}
        return self._response(request, 200, {"status": "ok", **about, "alarm": str(self.certificate or f"p <= {self.alarm:g}")})

    async def _metrics(self, request: Request) -> Response:
        return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")

    async def _refused(self, request: Request, error: Exception) -> Response:
        status, text = (error.status_code, error.detail) if isinstance(error, HTTPException) else (422, shortened(error))
        return self._response(request, status, {"error": text})

    def _response(self, request: Request, status: int, content: Any) -> Response:
        path = request.url.path
        self.requests.labels(path if path[1:] in (*self.scorers, "health") else "other", str(status)).inc()
        return JSONResponse(content, status, headers={"X-Content-Type-Options": "nosniff"})


def _require(condition: bool, status: int, expected: str, found: str) -> None:
    """Answers with a status unless a condition holds."""
    if not condition:
        raise HTTPException(status, f"expected {expected}, found {found}")


def _as_scores(rows: Sequence[Any]) -> tuple[np.ndarray, Sequence[str]]:
    """Returns posted scores, and the error of each one that is not a finite number."""
    found = [numbers([row]) for row in rows]
    scores = np.array([math.nan if one is None else one[0] for one in found])
    return scores, ["" if one is not None else "not a number" for one in found]


def numbers(row: Any) -> np.ndarray | None:
    """Returns a list of finite numbers as an array (D,); None for anything else.

    Example:
        >>> numbers([1, 2.5]), numbers([True]), numbers("1"), numbers([10**400])
        (array([1. , 2.5]), None, None, None)
    """
    if not isinstance(row, list) or not all(isinstance(x, Real) and not isinstance(x, bool) for x in row):
        return None
    try:
        found = np.array([float(x) for x in row])
    except OverflowError:
        return None
    return found if np.isfinite(found).all() else None


def by_detector(model: Calibrated) -> RowScorer:
    """Returns how a fitted detector scores posted vectors."""
    width = model.detector_.n_features_in_

    def score(rows: Sequence[Any]) -> tuple[np.ndarray, Sequence[str]]:
        vectors, scores = list(map(numbers, rows)), np.full(len(rows), np.nan)
        usable = [i for i, x in enumerate(vectors) if x is not None and len(x) == width]
        if usable:
            scores[usable] = model.scores(np.array([vectors[i] for i in usable]))
        return scores, np.where(np.isfinite(scores), "", f"not a list of {counted(width, 'number')}").tolist()

    return score


def by_columns(scorer: Callable[[Any], Mapping[str, Any]], features: Sequence[str], shape: Sequence[int]) -> RowScorer:
    """Returns how a `vergence.Scorer` scores posted images or vectors of a shape, or objects with values of features."""
    what = "an image in base64 of few pixels" if len(shape) == 3 else "an object" if features else "a list of numbers"
    columns = {name.partition("=")[0] for name in features}  # color=red is of the column color

    def score(rows: Sequence[Any]) -> tuple[np.ndarray, Sequence[str]]:
        clean: Sequence[Any] = [row if isinstance(row, dict) else None for row in rows]
        if not features:
            clean = _images(rows) if len(shape) == 3 else [numbers(row) for row in rows]
        batch = {name: [(row or {}).get(name) for row in clean] for name in columns} if features else {"x": clean}
        try:
            found = scorer(batch)
        except TypeError as error:  # a column of numbers and texts
            raise ValueError(f"expected values of one kind for each feature, found others: {shortened(error)}") from None
        errors = [f"not {what}" if row is None else error for row, error in zip(clean, found["error"], strict=True)]
        return np.asarray(found["score"], dtype=np.float64), errors

    return score


def _images(rows: Sequence[Any]) -> list[bytes | None]:
    """Returns the bytes of images, posted as they are or in base64; None for other rows, and beyond the pixels of one image."""
    found: list[bytes | None] = []
    pixels = 0
    for row in rows:
        try:
            data = row if isinstance(row, bytes) else base64.b64decode(row, validate=True)
        except (TypeError, ValueError):
            found.append(None)
            continue
        size = header(io.BytesIO(data))
        pixels += 0 if size is None else math.prod(size[1])
        found.append(data if pixels <= MAX_PIXELS else None)
    return found
