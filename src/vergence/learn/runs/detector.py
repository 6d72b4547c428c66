"""The detector of a run, kept in its folder: fitted to training items, calibrated on items that no fit has seen."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from vergence.data.items import Items, PairItems, batches
from vergence.data.modalities import with_context
from vergence.data.pixels import center_crop
from vergence.data.sources import Data
from vergence.decide.conformal import ranked
from vergence.decide.splits import one_of_each
from vergence.learn.encoders.config import Patches
from vergence.learn.encoders.patch_maps import PatchMaps, patch_dictionary
from vergence.learn.evaluation.collapse import collapse
from vergence.learn.evaluation.judgment import collapse_warning
from vergence.learn.methods.core import Method
from vergence.learn.runs.calibrated import Collected, RunDetector, fit_detector, sample
from vergence.learn.runs.features import ATOMS, RunFeatures
from vergence.learn.runs.rows import MOST_ITEMS, Reading, collected, of_module, whole
from vergence.learn.training import calibration, closed_form
from vergence.learn.training.folder import RunFolder
from vergence.utils import terminal
from vergence.utils.checks import expect
from vergence.utils.devices import in_evaluation

__all__ = ["FILE", "dictionary", "opened"]

FILE = "detector.safetensors"
UNSEEN = 2_000  # test items that show how far the scores of training items are off
DICTIONARY_FROM = 4_000  # images


def fit(folder: RunFolder, method: Method, data: Data, device: torch.device) -> RunDetector:
    """Returns a run's detector, fitted to its training items and calibrated.

    The mode of the method, on the device, is restored. Data without a calibration part are calibrated by training items.
    """
    reading = Reading(folder.metadata.crop_size(), device, workers=folder.config.fit.workers)
    held_out = data.calibration
    unseen = _normal(data.test, folder.config.data.keep_classes) if held_out is None else None
    total = sum(min(MOST_ITEMS, len(part)) for part in (data.train, held_out, unseen) if part is not None)
    with in_evaluation(method), terminal.bar("detector", total, late=True) as advance:
        features = RunFeatures(method, folder.metadata.shape)
        if features.pixels and features.patches is None:
            features.maps = dictionary(data.train, reading.size, reading.workers)
            features.to(device)

        def read(items: Items) -> Collected:
            return collected(features, items, reading, advance)

        training, calibrating = read(data.train), None if held_out is None else read(held_out)
        detector = fit_detector(training, calibrating, features.maps)
        gap = detector.gap
        if unseen is not None:
            gap = float((ranked(detector.calibration, detector.anomaly_score(read(unseen).features)) <= 0.05).mean())
    z = training.features["z"]
    collapsed = collapse_warning(collapse(torch.from_numpy(z)), dim=z.shape[1])
    notes = [*detector.notes, *filter(None, [collapsed])]
    return replace(detector, gap=gap, notes=notes, model=of_module(method))


def dictionary(items: Items, size: int | None, workers: int) -> PatchMaps | None:
    """Returns a dictionary of patches of some images, cropped to ``size``; None where they are too small, or too similar."""
    items = with_context(items)
    part = (items.context if isinstance(items, PairItems) else items).subset(sample(len(items), DICTIONARY_FROM).sort().values)
    stream = part.stream(batches(len(part), closed_form.block_size(part.shape)), workers=workers)
    images = (x if size is None else center_crop(x, size) for _, x in stream if len(x))
    settings = Patches(atoms=ATOMS, stride=2, pool=1, second=0)
    try:
        with torch.random.fork_rng(devices=[]):
            return patch_dictionary(images, part.shape if size is None else (part.shape[0], size, size), settings).float()
    except ValueError:
        return None


def _normal(test: Items, classes: Sequence[int] | None) -> Items | None:
    """Returns some test items of the classes that training kept."""
    index = torch.arange(len(test))
    if classes is not None and test.labels is not None:
        index = torch.isin(test.labels, torch.tensor(classes)).nonzero()[:, 0]
    return test.subset(index[sample(len(index), UNSEEN).sort().values]) if len(index) else None


def loaded_or_fitted(folder: RunFolder, method: Method, device: torch.device) -> RunDetector:
    """Returns a run's detector; fits one where there is none, or where it belongs to another model or to other feature sets.

    One that was fitted is kept in the folder; where that cannot be written, a line on stderr says so.
    """
    if (folder.path / FILE).exists():
        stored: RunDetector = folder.read_checked(FILE, RunDetector.read)
        widths = stored.of_batches(method, folder.metadata.shape).widths()
        fits = stored.normal.shape[1] == widths["z"] and stored.widths().items() <= widths.items()
        if fits and stored.model == of_module(method):
            return stored
    try:
        data = opened(folder)
    except ValueError as error:
        raise ValueError(f"{folder.path} has no detector yet, and its data cannot be opened to fit one: {error}") from None
    fitted = fit(folder, method, data, device)
    try:
        folder.write_checked(FILE, fitted.content())
    except ValueError as error:
        terminal.note(f"the detector was fitted for this call alone, since it cannot be kept: {error}")
    return fitted


def opened(folder: RunFolder) -> Data:
    """Returns a run's data with its calibration part, which each call reads again."""
    return calibration.split(whole(folder), folder.config)


def calibrating_pairs(folder: RunFolder, data: Data) -> PairItems | None:
    """Returns one pair, at random, of each group of a run's calibration part that shares contexts or targets; None without it."""
    pairs, trained = data.calibration, folder.metadata.content
    if not isinstance(pairs, PairItems):
        return None
    same = trained in ("", calibration.content_of(data.train))
    expect(same, f"the pairs that {folder.path} was trained on", "others, or another split of them", "train again")
    group = np.unique(calibration.content_groups(pairs), return_inverse=True)[1]
    own = one_of_each(group, np.ones(len(group), dtype=bool), folder.config.fit.seed)
    return pairs.subset(torch.from_numpy(own))
