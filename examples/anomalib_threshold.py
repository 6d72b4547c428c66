"""anomalib's adaptive threshold beside a calibrated one, where only normal images are at hand: rates of false alarms.

Images of the digits 0 to 4 are normal; some train, some validate, and the others show the rate that a threshold has in use.
Needs anomalib: pip install anomalib; python examples/anomalib_threshold.py
"""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


def write(folder, images):
    folder.mkdir(parents=True)
    for i, x in enumerate(images):
        Image.fromarray(np.kron(x, np.ones((8, 8))).astype(np.uint8)).convert("RGB").save(folder / f"{i:04d}.png")


def rates(post_processor, root):
    """Trains, validates on normal images, and returns the share of normal and of odd test images that are flagged."""
    from anomalib.data import Folder
    from anomalib.engine import Engine
    from anomalib.models import Padim

    split = {"val_split_mode": "from_train", "val_split_ratio": 0.5, "num_workers": 0}
    folders = {"normal_dir": "train", "abnormal_dir": "odd", "normal_test_dir": "normal"}
    data = Folder(name="digits", root=root, train_batch_size=16, eval_batch_size=16, **folders, **split)
    shrunk = Padim.configure_pre_processor(image_size=(64, 64))
    model = Padim(backbone="resnet18", pre_trained=False, post_processor=post_processor, pre_processor=shrunk)
    engine = Engine(default_root_dir=root / "runs", accelerator="cpu", logger=False, enable_progress_bar=False)
    engine.fit(model=model, datamodule=data)
    flagged = {0: [], 1: []}
    for batch in engine.predict(model=model, dataloaders=data.test_dataloader()):
        for label, odd in zip(batch.pred_label.flatten().tolist(), batch.gt_label.flatten().tolist(), strict=True):
            flagged[int(odd)].append(bool(label))
    return np.mean(flagged[0]), np.mean(flagged[1])


if __name__ == "__main__":
    from anomalib.post_processing import PostProcessor
    from anomalib_post_processor import CalibratedPostProcessor

    digits = load_digits()
    images = digits.images * (255 / 16)
    normal, odd = images[digits.target < 5], images[digits.target >= 5][:100]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, part in (("train", normal[:600]), ("normal", normal[600:900]), ("odd", odd)):
            write(root / name, part)
        for name, processor in (("adaptive", PostProcessor()), ("calibrated, fpr 0.05", CalibratedPostProcessor(fpr=0.05))):
            alarms, found = rates(processor, root)
            print(f"{name}: {alarms:.1%} of normal images flagged, {found:.1%} of odd ones")
