"""Fits a run's detector: at the end of a training, or on demand for a run of an earlier version."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vergence.data.items import Items, PairItems, batches
from vergence.data.pixels import center_crop
from vergence.data.sources import Data, open_data
from vergence.data.views import ImageViews
from vergence.detection.levels import patch_dictionary
from vergence.encoders.patch_maps import PatchMaps
from vergence.evaluation.levels import ATOMS, Levels
from vergence.evaluation.recognition import relative_error
from vergence.methods.core import Method
from vergence.runs.detector import FILE, RunDetector, fit, gap
from vergence.runs.identity import of_module
from vergence.runs.levels import MOST_ITEMS, Found, collected, sample
from vergence.training import calibration, closed_form
from vergence.training.folder import RunFolder
from vergence.utils import terminal
from vergence.utils.modules import in_evaluation

__all__ = ["dictionary", "fit_and_save", "loaded_or_fitted", "opened", "training_items"]

UNSEEN = 2_000  # test items that show how far the scores of training items are off
DICTIONARY_FROM = 4_000  # images
RECOGNIZED = 500  # items whose views show what an embedding knows


def fit_and_save(folder: RunFolder, method: Method, opened: Data, device: torch.device) -> RunDetector:
    """Fits a run's detector to its training items, calibrates it, and writes ``detector.safetensors``.

    Args:
        folder: The run folder.
        method: The trained method; its mode is restored.
        opened: The run's data with its calibration part, or without one: then training items calibrate.
        device: Device of the method.

    Raises:
        ValueError: There are too few items, no level tells them apart, or the file cannot be written.
    """
    found = _in_evaluation(folder, method, opened, device)
    folder.write_checked(FILE, found.content())
    return found


def _in_evaluation(folder: RunFolder, method: Method, opened: Data, device: torch.device) -> RunDetector:
    """Returns the detector of a method in evaluation mode; its modes are restored."""
    with in_evaluation(method):
        return _fitted(folder, method, opened, device)


def _fitted(folder: RunFolder, method: Method, opened: Data, device: torch.device) -> RunDetector:
    settings: dict[str, Any] = {"size": folder.metadata.crop_size(), "device": device, "workers": folder.config.fit.workers}
    held_out = opened.calibration
    unseen = _ordinary(opened, folder) if held_out is None else None
    total = sum(min(MOST_ITEMS, len(part)) for part in (opened.train, held_out, unseen) if part is not None)
    total += min(RECOGNIZED, len(opened.train))
    with terminal.late_bar("detector", total) as advance:
        levels = Levels(method, folder.metadata.shape)
        if levels.pixels and levels.patches is None:
            levels.maps = dictionary(opened.train, settings["size"], settings["workers"])
            levels.to(device)

        def read(items: Items) -> tuple[Found, Any]:
            return collected(levels, items, advance, **settings), items.names

        training, calibrating = read(opened.train), None if held_out is None else read(held_out)
        error = _relative_error(levels, opened.train, folder, method, device, advance)
        found = fit(*training, calibrating, levels.maps, error)
        if unseen is not None:
            scores = found.scores(read(unseen)[0].levels)[0]
            found.gap = gap(found.calibration, scores)
    found.model = of_module(method)
    return found


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


@torch.inference_mode()
def _relative_error(
    levels: Levels, items: Items, folder: RunFolder, method: Method, device: torch.device, advance: Callable[[int], None]
) -> float | None:
    """Returns how badly the embedding recognizes other views of some items; None for vectors and for pairs of two kinds.

    Training items serve: calibration items must not decide what their scores are. For pairs the target is the other view.
    """
    unlike = isinstance(items, PairItems) and items.target_shape != items.shape
    if unlike or getattr(method, "target_encoder", None) is not None:
        return None
    part = items.subset(sample(len(items), RECOGNIZED).sort().values)
    if not levels.pixels or len(part) < 2:
        return None
    size, workers = folder.metadata.crop_size(), folder.config.fit.workers
    views, draws = ImageViews(folder.config.views, folder.metadata.shape[1]), torch.Generator().manual_seed(0)
    found: list[dict[str, Tensor]] = []
    for index, x in part.stream(batches(len(part), closed_form.block_size(part.shape)), workers=workers):
        advance(len(index))
        pair = (views(x, draws), views(x, draws)) if isinstance(x, Tensor) else [center_crop(y, size) if size else y for y in x]
        if len(pair[0]):
            found.append(levels(torch.cat(tuple(pair)).to(device, memory_format=torch.channels_last)))
    if sum(len(one["z"]) for one in found) < 4:
        return None
    first, second = ({name: torch.cat([one[name].chunk(2)[i] for one in found]) for name in ("pixels", "z")} for i in (0, 1))
    return relative_error(first, second)


def _ordinary(opened: Data, folder: RunFolder) -> Items | None:
    """Returns some test items of the classes that training kept."""
    keep, index = folder.config.data.keep_classes, torch.arange(len(opened.test))
    if keep is not None and opened.test.labels is not None:
        index = torch.isin(opened.test.labels, torch.tensor(keep)).nonzero()[:, 0]
    return opened.test.subset(index[sample(len(index), UNSEEN).sort().values]) if len(index) else None


def loaded_or_fitted(folder: RunFolder, method: Method, device: torch.device) -> RunDetector:
    """Returns a run's detector; fits one where there is none, or where it belongs to another model or to other levels.

    One that was fitted is kept in the folder; where that cannot be written, a line on stderr says so.

    Raises:
        ValueError: The file is damaged, or there is none and the data to fit one to cannot be opened.
    """
    if (folder.path / FILE).exists():
        found: RunDetector = folder.read_checked(FILE, RunDetector.read)
        here = found.of_batches(method, folder.metadata.shape).widths()
        known = found.typical.shape[1] == here["z"] and found.widths().items() <= here.items()
        if known and found.model == of_module(method):
            return found
    try:
        data = opened(folder)
    except ValueError as error:
        raise ValueError(f"{folder.path} has no detector yet, and its data cannot be opened to fit one: {error}") from None
    fitted = _in_evaluation(folder, method, data, device)
    try:
        folder.write_checked(FILE, fitted.content())
    except ValueError as error:
        terminal.note(f"the detector was fitted for this call alone, since it cannot be kept: {error}")
    return fitted


def training_items(folder: RunFolder) -> Items:
    """Returns the items that a run's encoder was trained on.

    Raises:
        ValueError: They cannot be opened.
    """
    return opened(folder).train


def opened(folder: RunFolder) -> Data:
    """Returns a run's data with its calibration part, which each call reads again.

    Raises:
        ValueError: They cannot be opened.
    """
    config = folder.config
    return calibration.split(open_data(config.data, workers=config.fit.workers), config)
