"""The detector of a run: fitted to levels of training items, calibrated on items that no fit has seen, stored without pickle.

What is unusual in a picture may show at one level alone: a foreign kind of picture in its pixels, a foreign object only in the
embedding. Each level is a matrix (B, D) of a batch, for a detector of its own.
"""

import dataclasses
import itertools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.data.items import Items, PairItems, batches
from vergence.data.objects import IN_MEMORY
from vergence.data.pixels import center_crop, to_unit
from vergence.data.sources import Data, open_data
from vergence.data.views import ImageViews
from vergence.detection.images import pixel_statistics
from vergence.detection.levels import patch_dictionary, stage_features
from vergence.encoders.config import PatchSettings
from vergence.encoders.patch_maps import PatchEncoder, PatchMaps
from vergence.evaluation.collapse import collapse
from vergence.evaluation.judgment import collapse_warning
from vergence.evaluation.recognition import relative_error
from vergence.methods.core import Method
from vergence.runs.rows import MOST_ITEMS, Arrays, Collected, Reading, collected, of_module, sample
from vergence.training import calibration, closed_form
from vergence.training.folder import RunFolder
from vergence.utils import terminal
from vergence.utils.checks import expect
from vergence.utils.devices import in_evaluation
from vergence.utils.neighbors import nearest_rows

if TYPE_CHECKING:
    from vergence.detection import CombinedDetector

__all__ = ["FILE", "Levels", "RunDetector", "dictionary", "fit_and_save", "fit_detector", "loaded_or_fitted", "opened"]

FILE = "detector.safetensors"
FORMAT = 1
ATOMS = 128  # of the level patches
ARRAYS = ("calibration", "typical", "seen")
TYPICAL, NEAREST = 5_000, 3  # items that are shown as nearest typical ones, of each item
FOLDS = 5
LITTLE = 0.8  # of the statistics' rank error, from which an embedding knows little more than they do
WIDEST = 8_192  # features of a level, whose covariance takes half a gigabyte then
UNSEEN = 2_000  # test items that show how far the scores of training items are off
DICTIONARY_FROM = 4_000  # images
RECOGNIZED = 500  # items whose views show what an embedding knows


class Levels(nn.Module):
    """Items (B, ...) -> level by name, each (B, D) float32, of a trained method.

    - ``pixels``: statistics of images (`vergence.detection.pixel_statistics`); ``inputs``: vectors as they are.
    - ``patches``: average responses to the first 128 atoms of a closed-form encoder's dictionary, whose one pass serves both;
      with any other encoder to the dictionary ``maps``, where there is one.
    - ``z``: the embedding.

    Args:
        method: Trained method, in evaluation mode.
        shape: Shape of one item as the encoder sees it, (C, H, W) or (D,).
        maps: A dictionary of patches (`vergence.detection.patch_dictionary`), on the method's device.

    Example:
        >>> from vergence.encoders.networks import encoder
        >>> from vergence.methods.paired import PairedMethod
        >>> from vergence.objectives.vje import VJE
        >>> net = encoder("small", (1, 8, 8), torch.tensor([0.5]), torch.tensor([0.3])).eval()
        >>> levels = Levels(PairedMethod(net, VJE(256)), (1, 8, 8))
        >>> list(levels(torch.zeros(2, 1, 8, 8)))
        ['pixels', 'z']
    """

    def __init__(self, method: Method, shape: Sequence[int], maps: PatchMaps | None = None) -> None:
        super().__init__()
        self.method, self.shape, self.maps = method, tuple(shape), maps
        self.pixels = len(self.shape) == 3 and min(self.shape[1:]) > 1
        self.patches = next((m.settings for m in method.encoder.modules() if isinstance(m, PatchEncoder)), None)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns the levels of a batch of items on the method's device."""
        if not len(x):  # files of which none could be read
            return {name: f[:0] for name, f in self(x.new_zeros(1, *x.shape[1:])).items()}
        levels = {"pixels": pixel_statistics(x)} if self.pixels else {"inputs": x.flatten(1)}
        if self.patches is not None:
            responses, z = stage_features(self.method.encoder, x).values()
            levels |= {"patches": self.patches.averaged(responses, ATOMS), "z": z}
        else:
            if self.maps is not None:
                levels["patches"] = self.maps(to_unit(x))
            levels["z"] = self.method.encoder(x)
        return {name: f.float() for name, f in levels.items()}

    @torch.no_grad()
    def widths(self) -> dict[str, int]:
        """Returns the number of features of each level."""
        first = next(itertools.chain(self.method.encoder.parameters(), self.method.encoder.buffers()))
        x = torch.zeros(1, *self.shape, dtype=first.dtype, device=first.device)
        return {name: f.shape[1] for name, f in self(x).items()}


@dataclass(frozen=True)
class RunDetector:
    """A fitted detector with what turns its scores into p-values and reasons.

    Attributes:
        detector: The detector over the levels.
        calibration: Anomaly scores (n,) of the calibration items.
        names: Name of each calibration item.
        held_out: Whether no fit has seen the calibration items; otherwise they were training items, each scored by
            a detector that did not see it, behind an encoder that did.
        typical: Normalized embeddings (R, D) of typical training items.
        typical_names: Their names.
        seen: Digests of the items of the fit and the calibration, sorted.
        gap: Share of other training items (of test items where calibration items were training items) with p <= 0.05,
            which is 0.05 for items like those of the calibration; None where it was not measured.
        model: Digest of the model that the detector belongs to.
        notes: What the reader of the scores must know, such as a collapse.
        dictionary: Dictionary of the level ``patches``; None where the encoder has its own, or there is no such level.
        relative_error: How badly the embedding recognizes other views, against statistics of the pixels
            (`vergence.evaluation.recognition.relative_error`); None where there are none.
    """

    detector: "CombinedDetector"
    calibration: np.ndarray
    names: list[str]
    held_out: bool
    typical: np.ndarray
    typical_names: list[str]
    seen: np.ndarray
    gap: float | None = None
    model: str = ""
    notes: list[str] = field(default_factory=list)
    dictionary: PatchMaps | None = None
    relative_error: float | None = None

    @property
    def levels_(self) -> list[str]:
        """Names of the levels (L,)."""
        return list(self.detector.levels_)

    def widths(self) -> dict[str, int]:
        """Returns the number of features of each level that the detector reads."""
        return {name: detector.n_features_in_ for name, detector in self.detector.detectors_.items()}

    def of_batches(self, method: Method, shape: Sequence[int]) -> Levels:
        """Returns the function of a batch of items that computes the levels which the detector reads.

        Args:
            method: Trained method, in evaluation mode.
            shape: Shape of one item as the encoder sees it, (C, H, W) or (D,).

        Raises:
            ValueError: The dictionary of patches is one of other images.
        """
        first = next(itertools.chain(method.encoder.parameters(), method.encoder.buffers()))
        if self.dictionary is not None:
            _require_images(self.dictionary, shape)
        return Levels(method, shape, None if self.dictionary is None else self.dictionary.to(first.device))

    def contributions(self, levels: Mapping[str, Tensor | np.ndarray]) -> np.ndarray:
        """Returns -log p of each item at each level (B, L), in the order of ``levels_``."""
        if not len(levels["z"]):  # a batch of files of which none could be read
            return np.zeros((0, len(self.levels_)))
        columns = self.detector.contributions({name: _finite(name, _array(levels[name])) for name in self.levels_})
        return np.stack(list(columns.values()), -1)

    def combined(self, contributions: np.ndarray) -> np.ndarray:
        """Returns the anomaly score (B,) of each row of `contributions`."""
        return self.detector.combined(contributions) if len(contributions) else np.zeros(0)

    def score_samples(self, levels: Mapping[str, Tensor | np.ndarray]) -> np.ndarray:
        """Returns how typical each item is, (B,); larger is more typical."""
        return -self.combined(self.contributions(levels))

    def p_values(self, score: np.ndarray) -> np.ndarray:
        """Returns the p-value of each anomaly score (B,): the share of calibration items that are at least as anomalous."""
        return p_values(self.calibration, score)

    def nearest(self, z: np.ndarray) -> list[str]:
        """Returns the names of the three most similar typical items of each embedding (B, D), separated by ``; ``."""
        if not len(z):
            return []
        bank, directions = torch.from_numpy(self.typical).float(), torch.from_numpy(_normalized(z))
        best = nearest_rows(bank, directions, min(NEAREST, len(bank)), directions=True)
        return ["; ".join(self.typical_names[i] for i in row) for row in best.tolist()]

    @property
    def resolution(self) -> int:
        """Typical items against which every level can say how rare a new one is: of the smallest set that calibrates one."""
        rarest = max(float(np.exp(tail["log_share"].min())) for tail in self.detector.tails_.values())
        return max(1, min(len(self.calibration), round(1 / rarest) - 1))

    def with_calibration(self, scores: np.ndarray, names: list[str]) -> "RunDetector":
        """Returns the detector with other calibration items, which no fit has seen."""
        return replace(self, calibration=scores, names=names, held_out=True, gap=None)

    def content(self) -> bytes:
        """Returns the bytes of a ``.safetensors`` file; see `read`."""
        arrays = {f"detector/{name}": array for name, array in self.detector.arrays().items()}
        arrays |= {name: getattr(self, name) for name in ARRAYS}
        record = {name: value for name, value in vars(self).items() if name not in (*ARRAYS, "detector", "dictionary")}
        record |= {"format": FORMAT, "settings": self.detector.settings()}
        if self.dictionary is not None:
            record["dictionary"] = dataclasses.asdict(self.dictionary.settings)
            arrays |= {f"dictionary/{name}": _array(x) for name, x in self.dictionary.state_dict().items()}
        whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return bytes(save(whole, metadata={"record": json.dumps(record)}))

    @classmethod
    def read(cls, file: Path) -> "RunDetector":
        """Returns the detector of a file that holds `content`; runs no code of the file's.

        Raises:
            ValueError: The file is damaged or of another version.
        """
        from vergence.mixtures.storage import restore

        with safe_open(file, framework="numpy") as stored:
            record = json.loads((stored.metadata() or {})["record"])
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}
        expect(record.pop("format") == FORMAT, f"format {FORMAT}", "a file of another version")
        inner, of_patches = (
            {name.removeprefix(start): arrays.pop(name) for name in list(arrays) if name.startswith(start)}
            for start in ("detector/", "dictionary/")
        )
        members: dict[str, Any] = {"detector": restore("CombinedDetector", record.pop("settings"), inner)}
        if "dictionary" in record:
            members["dictionary"] = _dictionary(record.pop("dictionary"), of_patches)
        detector = cls(**members, **record, **arrays)
        detector.require_whole()
        return detector

    def require_whole(self) -> None:
        """Raises a ValueError unless what was read has its types and fits together."""
        types: dict[str, Any] = {"held_out": bool, "gap": float | None, "relative_error": float | None}
        n, typical = len(self.names), len(self.typical_names)
        wrong = [name for name, kind in types.items() if not isinstance(getattr(self, name), kind)]
        for name in ("names", "typical_names", "notes"):
            texts = getattr(self, name)
            wrong += [name] * (not isinstance(texts, list) or not all(isinstance(text, str) for text in texts))
        for name, dtype in (("calibration", np.floating), ("typical", np.floating), ("seen", np.uint64)):
            wrong += [name] * (not np.issubdtype(getattr(self, name).dtype, dtype))
        expect(not wrong, f"{wrong[0] if wrong else ''} of another type")
        finite = not np.isnan(self.calibration).any() and (not n or np.isfinite(self.calibration).any())
        expect(finite, "calibration scores", "NaN or nothing but infinity")
        whole = self.calibration.shape == (n,) and self.typical.ndim == 2 and len(self.typical) == typical and n and typical
        expect(whole, f"a score for each of {n} calibration items", f"shape {self.calibration.shape}")


def _dictionary(settings: dict[str, Any], arrays: Arrays) -> PatchMaps:
    """Returns a dictionary of patches from its settings and arrays; raises a ValueError where they do not fit together."""
    atoms = arrays.get("filters", np.zeros(0))
    expect("bias" in arrays and atoms.ndim == 2 and np.isfinite(atoms).all(), "a dictionary of patches", "none")
    given = PatchSettings(**settings)
    with torch.random.fork_rng(devices=[]):  # its atoms are random before they are set
        maps = PatchMaps(arrays["filters"].shape[1] // given.patch**2, given).float()
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    shapes, others = ({name: x.shape for name, x in tensors.items()} for tensors in (state, maps.state_dict()))
    expect(shapes == others, "a dictionary of patches whose atoms fit its settings")
    maps.load_state_dict(state)
    return maps


def _require_images(maps: PatchMaps, shape: Sequence[int]) -> None:
    """Raises a ValueError unless a dictionary reads images of ``shape``."""
    n, advice = maps.filters.shape[1], "remove the file, and the detector is fitted again"
    fits = len(shape) == 3 and n == shape[0] * maps.settings.patch**2
    expect(fits, f"the dictionary of {FILE} to be one of images of shape {tuple(shape)}", f"patches of {n} numbers", advice)
    maps.settings.require_size(shape)


def _array(x: Tensor | np.ndarray) -> np.ndarray:
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else x


def _finite(name: str, f: np.ndarray) -> np.ndarray:
    """Returns the features of a level; raises a ValueError where they hold NaN or infinity."""
    broken = int((~np.isfinite(f)).any(1).sum())
    expect(not broken, "finite features", f"NaN or infinity at level {name} of {broken} of {len(f)} items", "check them")
    return f


def _normalized(z: np.ndarray) -> np.ndarray:
    return F.normalize(torch.from_numpy(np.asarray(z, dtype=np.float32)), dim=1).numpy()


def p_values(calibration_scores: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Returns p-values without warnings: the whole is judged at the end, and a batch may be empty."""
    from vergence import detection

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(detection.p_values(calibration_scores, score)) if len(score) else score


def gap(calibration_scores: np.ndarray, scores: np.ndarray) -> float:
    """Returns the share of scores whose p-value is at most 0.05."""
    return float((p_values(calibration_scores, scores) <= 0.05).mean())


def usable_levels(levels: Arrays) -> tuple[Arrays, list[str]]:
    """Returns the levels whose features are finite, vary, and are at most 8,192, and one line on each of the others.

    Raises:
        ValueError: There is none.
    """
    why = {}
    for name, f in levels.items():
        if not np.isfinite(f).all():
            why[name] = "it holds NaN or infinity"
        elif f.shape[1] > WIDEST:
            why[name] = f"it has {f.shape[1]:,} features, more than {WIDEST:,}"
        elif not np.ptp(f, axis=0).any():
            why[name] = f"it is the same for all {len(f)} items"
    notes = [f"level {name} is left out: {reason}" for name, reason in why.items()]
    some = len(why) < len(levels)
    expect(some, "a level that tells the items apart", f"none ({'; '.join(notes)})", "give items that differ")
    return {name: f for name, f in levels.items() if name not in why}, notes


def fit_detector(
    training: Collected,
    names: Sequence[str],
    held_out: tuple[Collected, Sequence[str]] | None,
    maps: PatchMaps | None = None,
    error: float | None = None,
) -> RunDetector:
    """Returns a detector that is fitted to training items and calibrated on others.

    Args:
        training: Levels of at least 10 training items, with ``z`` among them.
        names: Names of all training items, by the index of ``training``.
        held_out: Levels and all names of the calibration items; None to calibrate on the training items, each scored by
            a detector that was fitted without it.
        maps: Dictionary that the level ``patches`` was computed with; it is stored for the items to come.
        error: How badly the embedding recognizes other views, which decides how much it counts; None for well.

    Raises:
        ValueError: There are too few items, or no level tells them apart.
    """
    from vergence.detection import cross_fit, default_detector

    expect(len(training.index) >= 2 * FOLDS, f"at least {2 * FOLDS} items to fit a detector to", len(training.index), "give more")
    levels, notes = usable_levels(training.levels)
    calibrating, others = held_out or (training, names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = default_detector(levels, relative_error=error or 0.0).fit(levels)
        fitted = detector.anomaly_score(levels)
        if held_out is None:
            scores = cross_fit(detector, levels, FOLDS)[0]
        else:
            scores = detector.anomaly_score({name: calibrating.levels[name] for name in detector.levels_})
    z = training.levels["z"]
    usual = np.argsort(fitted, kind="stable")[: max(1, len(z) * 9 // 10)]
    shown = np.sort(usual[sample(len(usual), TYPICAL).numpy()])
    return RunDetector(
        detector=detector,
        calibration=scores,
        names=[others[i] for i in calibrating.index.tolist()],
        held_out=held_out is not None,
        typical=_normalized(z[shown]).astype(np.float16),
        typical_names=[names[i] for i in training.index[shown].tolist()],
        seen=np.unique(np.concatenate([training.digests, calibrating.digests])),
        gap=None if held_out is None else gap(scores, fitted),
        notes=[*notes, *_about_embedding(z, error)],
        dictionary=maps if "patches" in levels else None,
        relative_error=error,
    )


def _about_embedding(z: np.ndarray, error: float | None) -> list[str]:
    """Returns a line where embeddings (N, D) collapse, and one where they recognize little."""
    notes = []
    if message := collapse_warning(collapse(torch.from_numpy(z)), dim=z.shape[1]):
        notes.append(message)
    if error is not None and error >= LITTLE:
        better = "little better than" if error < 1 else "no better than"
        notes.append(
            f"the embedding recognizes other views of an item {better} statistics of its pixels do (its rank error is "
            f"{error:.2f} times theirs), so that these decide; more items or a longer training may help"
        )
    return notes


def fit_and_save(folder: RunFolder, method: Method, data: Data, device: torch.device) -> RunDetector:
    """Fits a run's detector to its training items, calibrates it, and writes ``detector.safetensors``.

    Args:
        folder: The run folder.
        method: The trained method; its mode is restored.
        data: The run's data with its calibration part, or without one: then training items calibrate.
        device: Device of the method.

    Raises:
        ValueError: There are too few items, no level tells them apart, or the file cannot be written.
    """
    detector = _fitted(folder, method, data, device)
    folder.write_checked(FILE, detector.content())
    return detector


def _fitted(folder: RunFolder, method: Method, data: Data, device: torch.device) -> RunDetector:
    reading = Reading(folder.metadata.crop_size(), device, workers=folder.config.fit.workers)
    held_out, unseen = data.calibration, None
    if held_out is None:
        unseen = _ordinary(data.test, folder.config.data.keep_classes)
    total = sum(min(MOST_ITEMS, len(part)) for part in (data.train, held_out, unseen) if part is not None)
    total += min(RECOGNIZED, len(data.train))
    with in_evaluation(method), terminal.late_bar("detector", total) as advance:
        levels = Levels(method, folder.metadata.shape)
        if levels.pixels and levels.patches is None:
            levels.maps = dictionary(data.train, reading.size, reading.workers)
            levels.to(device)

        def read(items: Items) -> tuple[Collected, Sequence[str]]:
            return collected(levels, items, reading, advance), items.names

        training, calibrating = read(data.train), None if held_out is None else read(held_out)
        error = None
        if levels.pixels and _has_views(data.train, method):
            views = ImageViews(folder.config.views, folder.metadata.shape[1])
            error = _relative_error(levels, data.train, views, reading, advance)
        detector = fit_detector(*training, calibrating, levels.maps, error)
        if unseen is not None:
            scores = -detector.score_samples(read(unseen)[0].levels)
            detector = replace(detector, gap=gap(detector.calibration, scores))
    return replace(detector, model=of_module(method))


def dictionary(items: Items, size: int | None, workers: int) -> PatchMaps | None:
    """Returns a dictionary of patches of some images; None where they are smaller than a patch, or too much alike.

    Args:
        items: Images, or pairs, of which the contexts are read.
        size: Side of the central crop that is read, in pixels; None for whole images.
        workers: Processes that decode images that do not fit into memory.
    """
    part = (items.context if isinstance(items, PairItems) else items).subset(sample(len(items), DICTIONARY_FROM).sort().values)
    stream = part.stream(batches(len(part), closed_form.block_size(part.shape)), workers=workers)
    images = (x if size is None else center_crop(x, size) for _, x in stream if len(x))
    try:
        with torch.random.fork_rng(devices=[]):
            return patch_dictionary(images, ATOMS)
    except ValueError:
        return None


def _has_views(items: Items, method: Method) -> bool:
    """Returns whether an item has views by which one encoder can recognize it: not pairs of two kinds."""
    unlike = isinstance(items, PairItems) and items.target_shape != items.shape
    return not unlike and getattr(method, "target_encoder", None) is None


@torch.inference_mode()
def _relative_error(
    levels: Levels, items: Items, views: ImageViews, reading: Reading, advance: Callable[[int], None]
) -> float | None:
    """Returns how badly the embedding recognizes other views of some images; None for fewer than two.

    Training items serve: calibration items must not decide what their scores are. For pairs the target is the other view.
    """
    part = items.subset(sample(len(items), RECOGNIZED).sort().values)
    if len(part) < 2:
        return None
    draws, size = torch.Generator().manual_seed(0), reading.size
    seen: list[dict[str, Tensor]] = []
    for index, x in part.stream(batches(len(part), closed_form.block_size(part.shape)), workers=reading.workers):
        advance(len(index))
        pair = (views(x, draws), views(x, draws)) if isinstance(x, Tensor) else [center_crop(y, size) if size else y for y in x]
        if len(pair[0]):
            seen.append(levels(torch.cat(tuple(pair)).to(reading.device, memory_format=torch.channels_last)))
    if sum(len(batch["z"]) for batch in seen) < 4:
        return None
    first, second = ({name: torch.cat([batch[name].chunk(2)[i] for batch in seen]) for name in ("pixels", "z")} for i in (0, 1))
    return relative_error(first, second)


def _ordinary(test: Items, classes: Sequence[int] | None) -> Items | None:
    """Returns some test items of the classes that training kept."""
    index = torch.arange(len(test))
    if classes is not None and test.labels is not None:
        index = torch.isin(test.labels, torch.tensor(classes)).nonzero()[:, 0]
    return test.subset(index[sample(len(index), UNSEEN).sort().values]) if len(index) else None


def loaded_or_fitted(folder: RunFolder, method: Method, device: torch.device) -> RunDetector:
    """Returns a run's detector; fits one where there is none, or where it belongs to another model or to other levels.

    One that was fitted is kept in the folder; where that cannot be written, a line on stderr says so.

    Raises:
        ValueError: The file is damaged, or there is none and the data to fit one to cannot be opened.
    """
    if (folder.path / FILE).exists():
        stored: RunDetector = folder.read_checked(FILE, RunDetector.read)
        widths = stored.of_batches(method, folder.metadata.shape).widths()
        fits = stored.typical.shape[1] == widths["z"] and stored.widths().items() <= widths.items()
        if fits and stored.model == of_module(method):
            return stored
    try:
        data = opened(folder)
    except ValueError as error:
        raise ValueError(f"{folder.path} has no detector yet, and its data cannot be opened to fit one: {error}") from None
    fitted = _fitted(folder, method, data, device)
    try:
        folder.write_checked(FILE, fitted.content())
    except ValueError as error:
        terminal.note(f"the detector was fitted for this call alone, since it cannot be kept: {error}")
    return fitted


def opened(folder: RunFolder) -> Data:
    """Returns a run's data with its calibration part, which each call reads again.

    Raises:
        ValueError: They cannot be opened.
    """
    return calibration.split(whole(folder), folder.config)


def whole(folder: RunFolder) -> Data:
    """Returns a run's data as they were opened, before a calibration part was taken out.

    Raises:
        ValueError: They cannot be opened, or are data of a program that has not given them.
    """
    config = folder.config
    lost = config.data.source.startswith(IN_MEMORY) and not folder.given
    what = f"the data of the training, {config.data.source.removeprefix(IN_MEMORY)}, which no file holds"
    expect(not lost, what, advice="pass them with vergence.load(path, data=...)")
    return open_data(config.data, workers=config.fit.workers, **folder.given)
