"""The folder of a run that starts, or of one that goes on."""

import sys
from pathlib import Path
from typing import Any

from vergence.data.sources import Data
from vergence.methods.core import Method
from vergence.training import start
from vergence.training.config import RunConfig
from vergence.training.folder import RunFolder, write_skipped
from vergence.training.records import RunMetadata, Weights

__all__ = ["continued", "created"]


def created(fabric: Any, out: Path, config: RunConfig, metadata: RunMetadata, opened: Data, method: Method) -> RunFolder:
    """Returns a new run folder, which the first process writes, and says which weights the run starts from."""
    folder = RunFolder(out, config, metadata)
    if fabric.is_global_zero:
        folder = RunFolder.create(out, config, metadata)
        write_skipped(out / "skipped.csv", opened.skipped)
        assert metadata.weights is not None, "of a new run"
        _say_weights(folder, metadata.weights)
        if metadata.weights.source not in ("random", "none") and not config.model.freeze:
            folder.save_initial(method.state_dict())
    fabric.barrier()
    return folder


def continued(out: Path, config: RunConfig, now: RunMetadata, method: Method) -> RunFolder:
    """Returns the folder of a run that is resumed, as `resumed` describes it; sets the weights that the run started from.

    Raises:
        ValueError: The data has changed since the run started, or the run did not come to keep the weights that it started from.
    """
    folder = RunFolder.open(out, trust_code=True)  # `resumed` has asked
    for name in ("n_train", "n_calibration", "shape", "target_shape"):
        before, found = getattr(folder.metadata, name), getattr(now, name)
        if before != found:
            raise ValueError(f"expected the data that the run started with, found {name} {found} instead of {before}; restore it")
    folder.config = config
    weights = folder.metadata.weights
    if weights is not None and weights.source not in ("random", "none") and not config.model.freeze:
        state = folder.load_initial()
        if state is None:
            raise ValueError(f"{out} was stopped before it kept the weights that it starts from; start it again without --resume")
        method.load_state_dict(state)
    return folder


def _say_weights(folder: RunFolder, weights: Weights) -> None:
    """Prints and logs which weights a run starts from, unless they are random ones and its encoder's name suggests no others."""
    hint = start.hint(folder.config.model.encoder, weights)
    if weights.source != "random" or hint:
        words = f"weights: {weights.in_words()}{hint}"
        print(words, file=sys.stderr)
        folder.log(words)
