"""The comparison's training with lightly, laid out as the plain PyTorch loops of its documentation are."""

import json
import sys
from pathlib import Path

import torch
from lightly.loss import NTXentLoss, VICRegLoss
from lightly.models.modules.heads import SimCLRProjectionHead, VICRegProjectionHead
from lightly.transforms import SimCLRTransform
from network import backbone
from torchvision.datasets import CIFAR10

s = json.loads(Path(sys.argv[1]).read_text())
torch.manual_seed(s["seed"])
jitter = {"cj_bright": 0.4, "cj_contrast": 0.4, "cj_sat": 0.4, "cj_hue": 0.1}
statistics = {"mean": s["mean"], "std": s["std"]}
transform = SimCLRTransform(32, **jitter, min_scale=0.2, gaussian_blur=0.0, normalize=statistics)
dataset = torch.utils.data.Subset(CIFAR10(s["root"], transform=transform), s["items"])
loader = torch.utils.data.DataLoader(
    dataset,
    batch_size=s["batch_size"],
    shuffle=True,
    drop_last=True,
    num_workers=s["workers"],
)
if s["method"] == "contrastive":  # a choice
    head, criterion = SimCLRProjectionHead(s["width"], 512, 128), NTXentLoss(temperature=0.2)  # contrastive
else:  # a choice
    head, criterion = VICRegProjectionHead(s["width"], 512, 512), VICRegLoss()  # vicreg
model = torch.nn.Sequential(backbone(), head).to(s["device"])
optimizer = torch.optim.AdamW(model.parameters(), lr=s["lr"], weight_decay=s["weight_decay"])
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, s["steps"])
model.train()
for epoch in range(s["epochs"]):
    total = 0.0
    for (x0, x1), _ in loader:
        with torch.autocast(s["device"], torch.bfloat16, enabled=s["precision"] == "bf16"):
            z0, z1 = (model(x.to(s["device"])) for x in (x0, x1))
        loss = criterion(z0.float(), z1.float())
        total += loss.detach()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    print(f"epoch {epoch}: loss {total / len(loader):.4f}")
