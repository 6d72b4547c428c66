"""The comparison's training with this library."""

import json
import sys
from pathlib import Path

from vergence import train

s = json.loads(Path(sys.argv[1]).read_text())
heads = {}
heads["contrastive"] = {"projector": (512, 128), "projector_norm": "batch_last"}  # contrastive
heads["vicreg"] = {"projector": (512, 512, 512), "projector_norm": "batch"}  # vicreg
data = {"root": s["root"], "limit": len(s["items"]), "calibration_share": 0.0, "blur": 0.0}
fit = {name: s[name] for name in ("epochs", "batch_size", "lr", "weight_decay", "precision", "device", "threads", "seed")}
fit |= {"optimizer": "adamw", "warmup_epochs": 0.0, "knn_every": 0}
train(
    "cifar10",
    out=s["out"],
    recipe="jepa_small",
    encoder="network:backbone",
    objective=s["method"],
    **heads[s["method"]],
    **data,
    **fit,
)
