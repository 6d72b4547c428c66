"""A post-processor for anomalib whose rate of false alarms is stated; it needs normal images alone. Copy this file.

    from anomalib_post_processor import CalibratedPostProcessor

    model = Padim(post_processor=CalibratedPostProcessor(fpr=0.01))

anomalib's own threshold maximizes F1 on validation images; without anomalous ones there, no rate follows from it. Here the
threshold is that of `vergence.decide.fpr_threshold`: at most a share ``fpr`` of normal images lies above it, with
``confidence`` over sets of validation images. These must be normal, like those in use, and unseen by the fit: split them from
the training images (``val_split_mode="from_train"``), not from the test ones.
"""

from typing import Any

import torch
from anomalib.post_processing import PostProcessor
from torch import Tensor

from vergence.decide import fpr_threshold, needed_for_fpr
from vergence.decide.decisions import LEAST
from vergence.utils.checks import expect, require_within

__all__ = ["CalibratedPostProcessor"]


class CalibratedPostProcessor(PostProcessor):
    """Labels, masks and scores by calibration on normal validation images.

    ``pred_label`` is whether the score is above the threshold; ``pred_score`` becomes 1 - p, the share of normal images that
    are less anomalous, in [0, 1); ``pred_mask`` holds regions above a threshold that a share ``region_rate`` of them exceeds
    anywhere. ``anomaly_map`` stays as the model gives it.

    Args:
        fpr: Share of normal images that are called anomalous, at most, in (0, 1).
        confidence: Probability of that, over sets of validation images, in (0, 1).
        region_rate: Share of normal images in which any region is masked, on average at most, in (0, 1).

    Raises:
        ValueError: When validation ends with fewer normal images than the rate needs.
    """

    calibration: Tensor
    maxima: Tensor

    def __init__(self, fpr: float = 0.01, confidence: float = 0.95, region_rate: float = 0.05) -> None:
        super().__init__(enable_normalization=False, enable_thresholding=True)
        require_within("(0, 1)", fpr=fpr, confidence=confidence, region_rate=region_rate)
        self.fpr, self.confidence, self.region_rate = fpr, confidence, region_rate
        self.register_buffer("calibration", torch.zeros(0))
        self.register_buffer("maxima", torch.zeros(0))
        self._seen: list[tuple[Tensor, Tensor | None]] = []

    @property
    def _checkpoint_config_keys(self) -> tuple[str, ...]:
        return (*super()._checkpoint_config_keys, "fpr", "confidence", "region_rate")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in ("calibration", "maxima"):  # their lengths are those of the data
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name]))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *args: Any, **kwargs: Any) -> None:
        """Keeps the scores of normal images."""
        del trainer, pl_module, args, kwargs
        scores = _scores(outputs).detach().flatten().cpu()
        normal = torch.ones(len(scores), dtype=torch.bool)
        if outputs.gt_label is not None:
            normal = ~outputs.gt_label.bool().cpu()
        maps = outputs.anomaly_map
        self._seen.append((scores[normal], None if maps is None else maps.detach().flatten(1).amax(1).cpu()[normal]))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Sets the thresholds."""
        del trainer, pl_module
        scores = torch.cat([score for score, _ in self._seen]) if self._seen else torch.zeros(0)
        maxima = [maximum for _, maximum in self._seen if maximum is not None]
        self._seen = []
        needed = max(LEAST, needed_for_fpr(self.fpr, self.confidence))
        advice = "validate on more normal images, or allow a larger fpr"
        expect(len(scores) >= needed, f"at least {needed} normal validation images for fpr {self.fpr:g}", len(scores), advice)
        certificate = fpr_threshold(scores, self.fpr, self.confidence)
        device = self._image_threshold.device
        self.calibration = scores.sort().values.to(device)
        self._image_threshold.copy_(torch.tensor(certificate.threshold))
        if maxima:
            self.maxima = torch.cat(maxima).sort(descending=True).values.to(device)
            rank = int(self.region_rate * (len(self.maxima) + 1))  # at most so many of n + 1 exchangeable images are above it
            self._pixel_threshold.copy_(self.maxima[max(0, rank - 1)])

    def post_process_batch(self, batch: Any) -> None:
        """Sets labels, masks and scores of a batch."""
        scores = _scores(batch)
        if batch.pred_label is None:
            batch.pred_label = scores > self._image_threshold
        if batch.pred_mask is None and batch.anomaly_map is not None:
            batch.pred_mask = batch.anomaly_map > self._pixel_threshold
        batch.pred_score = self._shares(scores)

    def forward(self, predictions: Any) -> Any:
        """Returns the predictions with labels, masks and scores, as an exported model gives them."""
        from anomalib.data import InferenceBatch

        scores, maps = _scores(predictions), predictions.anomaly_map
        return InferenceBatch(
            pred_label=scores > self._image_threshold,
            pred_score=self._shares(scores),
            pred_mask=None if maps is None else maps > self._pixel_threshold,
            anomaly_map=maps,
        )

    def _shares(self, scores: Tensor) -> Tensor:
        """Returns 1 - p of each score."""
        at_least = (self.calibration >= scores[..., None]).sum(-1)
        return 1 - (1.0 + at_least) / (len(self.calibration) + 1)


def _scores(batch: Any) -> Tensor:
    """Returns the scores of images: given, or the largest of each map."""
    given = batch.pred_score
    scores: Tensor = batch.anomaly_map.flatten(1).amax(1) if given is None else given
    return scores
