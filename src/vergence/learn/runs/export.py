"""A run as one graph outside the library: items -> embedding, anomaly score and p-value, as ONNX or as an exported program.

The graph computes what `vergence.learn.runs.calibrated.RunDetector` does: feature sets, the log-distances of each, their mean,
and ranks among the calibration scores. It is compared with the library on real items before it is kept.

Shapes: B items, n calibration items.
"""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vergence.data.items import batches, contexts
from vergence.data.pixels import center_crop
from vergence.decide import Detector, FeatureSets, GaussianDetector, NeighborDetector, density, feature_sets, neighbors
from vergence.decide.conformal import ranked
from vergence.learn.encoders.patch_maps import PatchMaps
from vergence.learn.runs import detector as detectors
from vergence.learn.runs.features import RunFeatures
from vergence.learn.runs.run import Run
from vergence.utils.checks import expect, refuse, require_choice, shortened
from vergence.utils.files import explained, replacing

__all__ = ["Exported", "export"]

FORMATS = {".onnx": "onnx", ".pt2": "torch"}
COMPARED, BATCH = 256, 16  # items that are compared; of the example
NAMES = ("z", "score", "p_value")
CLOSE = 5e-3  # relative, of scores; p-values may differ by the ranks that this moves


@dataclass(frozen=True)
class Exported:
    """What was written: the file, its input's shape and type, and the largest differences from the library on some items."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    items: int
    difference: float


def export(run: Run, out: str | Path, *, dtype: Literal["uint8", "float32"] | None = None) -> Exported:
    """Writes a run as one graph: items (B, ...) -> ``z`` (B, D), ``score`` (B,), ``p_value`` (B,); B is free.

    Items are as the run reads them: images (B, C, H, W) of its shape, bytes or floats in [0, 1], or vectors (B, D).

    Args:
        run: The run.
        out: ``.onnx`` file, or ``.pt2`` for `torch.export.load`.
        dtype: Type of the input; by default that of the run's items.

    Raises:
        ValueError: The run has a part that cannot be exported, a package is missing, or what was written does not agree with the
            library on the run's test items.
    """
    file = Path(out)
    require_choice(f"the ending of {file.name}", file.suffix.lower(), FORMATS)
    module, opened = _Graph(run), detectors.opened(run.folder)
    some = opened.test.subset(torch.arange(min(COMPARED, len(opened.test))))
    parts = [contexts(x) for _, x in some.stream(batches(len(some), COMPARED))]
    kind = dtype or ("uint8" if parts[0].dtype == torch.uint8 else "float32")
    x = torch.cat(parts) if kind == str(parts[0].dtype).removeprefix("torch.") else torch.cat(parts).float() / 255
    expect(str(x.dtype) == f"torch.{kind}", "dtype uint8 of a run on images", f"one on {x.dtype}", "use float32")
    if module.other_arithmetic and opened.calibration is not None:
        parts = [contexts(part) for _, part in opened.calibration.stream(batches(len(opened.calibration), COMPARED))]
        given = torch.cat([part if part.dtype == x.dtype else part.float() / 255 for part in parts])
        module.calibration = torch.from_numpy(np.sort(_of_library(run, module, given)[1]))
    expected = _of_library(run, module, x)
    with explained(file, "choose another `out`"), replacing(file) as part, torch.inference_mode(False), torch.no_grad():
        written = _written(module, x[:BATCH].clone(), file.suffix.lower())
        found = _read_back(written, x, file.suffix.lower())
        difference = _agree(found, expected, len(module.calibration))
        part.write_bytes(written)
    return Exported(file, tuple(x.shape[1:]), kind, len(x), difference)


def _written(module: nn.Module, x: Tensor, ending: str) -> bytes:
    target = io.BytesIO()
    free = {0: torch.export.Dim("batch", min=1, max=1 << 16)}
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            logging.getLogger("onnxscript").setLevel(logging.ERROR)  # constants that it does not fold
            program = torch.export.export(module, (x,), dynamic_shapes=(free,), strict=False)
            if ending == ".pt2":
                torch.export.save(program, target)
            else:
                onnx = torch.onnx.export(program, input_names=["x"], output_names=list(NAMES), dynamo=True, verbose=False)
                assert onnx is not None, "of dynamo"
                target.write(onnx.model_proto.SerializeToString())
    except ImportError as error:
        raise ValueError(f"expected what writes ONNX, found: {shortened(error)}; pip install 'vergence[export]'") from None
    except (RuntimeError, TypeError, ValueError) as error:  # of torch, for an operation that it cannot export
        raise ValueError(f"expected a run that can be exported, found: {shortened(error)}; use vergence.Scorer") from None
    return target.getvalue()


def _read_back(written: bytes, x: Tensor, ending: str) -> list[np.ndarray]:
    """Returns what the written graph computes, in batches of several sizes."""
    run: Callable[[Tensor], Any]
    if ending == ".pt2":
        run = torch.export.load(io.BytesIO(written)).module()
    else:
        try:
            import onnxruntime
        except ImportError:
            raise ValueError("expected onnxruntime to compare the graph, found none; pip install 'vergence[export]'") from None
        session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
        run = lambda part: session.run(None, {"x": part.numpy()})  # noqa: E731
    outs = [run(part) for part in (x[:1], *x[1:].split(100)) if len(part)]
    return [np.concatenate([np.asarray(out[i]) for out in outs]) for i in range(len(NAMES))]


def _of_library(run: Run, module: "_Graph", x: Tensor) -> list[np.ndarray]:
    """Returns embedding, score and p-value as the library's detector computes them, in the arithmetic of the graph."""
    found, parts = run.detector(), []
    with torch.no_grad():
        for part in x.split(COMPARED):
            seen = part if module.size is None or part.ndim != 4 else center_crop(part, module.size)
            features = module.features(seen)
            parts.append((features["z"].float().cpu().numpy(), found.anomaly_score(features)))
    z, score = (np.concatenate(column) for column in zip(*parts, strict=True))
    return [z, score, ranked(module.calibration.numpy(), score)]


def _agree(found: list[np.ndarray], expected: list[np.ndarray], n: int) -> float:
    """Returns the largest relative difference of the scores; raises a ValueError where values, ranks or decisions differ."""
    scale = max(float(np.abs(expected[1]).max()), 1e-12)
    difference = float(np.abs(found[1] - expected[1]).max()) / scale
    far = float(np.abs(found[0] - expected[0]).max()) / max(float(np.abs(expected[0]).max()), 1e-12)
    moved = float(np.abs(found[2] - expected[2]).max()) * (n + 1)
    close = max(difference, far) <= CLOSE and moved <= max(2.0, CLOSE * n)
    if not close:
        text = f"differences of {far:.2g} in z, {difference:.2g} in the score and {moved:.0f} ranks of {n}"
        refuse("a graph that agrees with the library", text, "report it, and use vergence.Scorer")
    return difference


# The graph


class _Graph(nn.Module):
    """Items -> (z, score, p-value)."""

    calibration: Tensor

    def __init__(self, run: Run) -> None:
        super().__init__()
        found, self.size = run.detector(), run.where()["size"]
        method = copy.deepcopy(run.method).to("cpu")
        self.features: RunFeatures = copy.deepcopy(found.of_batches(method, run.folder.metadata.shape))
        self.other_arithmetic = False
        for maps in self.features.modules():
            if isinstance(maps, PatchMaps):  # products in bfloat16, of this machine, have no place in a graph for any
                self.other_arithmetic |= maps.arithmetic() != maps.filters.dtype
                maps.plain = True
        self.sets = _Sets(found.sets)
        self.register_buffer("calibration", torch.from_numpy(np.sort(found.calibration)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = x if self.size is None or x.ndim != 4 else center_crop(x, self.size)
        features = self.features(x)
        score = self.sets({name: values.double() for name, values in features.items()})
        at_least = (self.calibration >= score[:, None]).sum(1)
        score = torch.where(score.isfinite(), score, torch.nan)  # an item with NaN or infinity is not scored
        p = (1.0 + at_least.double()) / (len(self.calibration) + 1)
        return features["z"], score, torch.where(score.isnan(), score, p)


class _Gaussian(nn.Module):
    """Log-distances of a `GaussianDetector`."""

    location: Tensor
    root: Tensor

    def __init__(self, fitted: GaussianDetector) -> None:
        super().__init__()
        self.register_buffer("location", torch.from_numpy(np.asarray(fitted.location_, dtype=np.float64)))
        self.register_buffer("root", torch.from_numpy(np.asarray(fitted.root_, dtype=np.float64)))

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.location) @ self.root).square().sum(1).clamp(min=density.TINY).log()


class _Neighbors(nn.Module):
    """Log-distances of a `NeighborDetector`."""

    items: Tensor
    location: Tensor
    scale: Tensor

    def __init__(self, fitted: NeighborDetector) -> None:
        super().__init__()
        expect(bool((fitted.weights_ == 1).all()), "neighbors of equal weights", "others", "use vergence.Scorer")
        self.k, self.cosine = int(min(fitted.n_neighbors, len(fitted.items_) - 1)), fitted.metric == "cosine"
        for name in ("items", "location", "scale"):
            self.register_buffer(name, torch.from_numpy(np.asarray(getattr(fitted, f"{name}_"), dtype=np.float64)))

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.location) / self.scale
        norm = x.square().sum(1, keepdim=True).sqrt()
        if self.cosine:
            x = x / torch.where(norm > 0, norm, torch.ones_like(norm))
        square = x.square().sum(1, keepdim=True) + self.items.square().sum(1) - 2 * x @ self.items.T
        near = square.clamp(min=0).topk(self.k + 1, 1, largest=False, sorted=True).values
        itself = near[:, 0] <= 1e-12 * (1 + norm[:, 0].square())  # an item of the fit is not its own neighbor
        kth = torch.where(itself, near[:, self.k], near[:, self.k - 1])
        distance = torch.where(norm[:, 0] > 0, kth / 2, torch.ones_like(kth)) if self.cosine else kth.sqrt()
        return distance.clamp(min=neighbors.TINY).log()


class _Sets(nn.Module):
    """The score of fitted feature sets."""

    scale: Tensor
    weights: Tensor

    def __init__(self, fitted: FeatureSets) -> None:
        super().__init__()
        self.names, self.sharpness = list(fitted.detectors_), fitted.sharpness
        self.parts = nn.ModuleList(map(_module, fitted.detectors_.values()))
        self.register_buffer("scale", torch.from_numpy(np.asarray(fitted.scale_, dtype=np.float64)))
        self.register_buffer("weights", torch.tensor(list(fitted.shares.values()), dtype=torch.float64))

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        t = torch.stack([part(features[name]) for name, part in zip(self.names, self.parts, strict=True)], 1)
        z = ((t - self.scale[:, 0]) / self.scale[:, 1]).clamp(min=feature_sets.LOWEST)
        return (self.sharpness * z + self.weights.log()).logsumexp(1) / self.sharpness if self.sharpness else z @ self.weights


def _module(fitted: Detector) -> nn.Module:
    if isinstance(fitted, GaussianDetector):
        return _Gaussian(fitted)
    if isinstance(fitted, NeighborDetector):
        return _Neighbors(fitted)
    return refuse("a detector of Gaussians and neighbors", type(fitted).__name__, "use vergence.Scorer")
