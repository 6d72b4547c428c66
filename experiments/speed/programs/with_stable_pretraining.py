"""The comparison's training with stable-pretraining, laid out as the example of its README is."""

import json
import sys
from pathlib import Path

import lightning
import stable_pretraining as spt
import torch
from network import backbone
from stable_pretraining import forward
from stable_pretraining.data import transforms
from torchvision.datasets import CIFAR10

s = json.loads(Path(sys.argv[1]).read_text())
lightning.seed_everything(s["seed"])
view = transforms.Compose(
    transforms.RGB(),
    transforms.RandomResizedCrop((32, 32), scale=(0.2, 1.0)),
    transforms.RandomHorizontalFlip(),
    transforms.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, p=0.8),
    transforms.RandomGrayscale(p=0.2),
    transforms.ToImage(mean=s["mean"], std=s["std"]),
)
dataset = spt.data.FromTorchDataset(
    torch.utils.data.Subset(CIFAR10(s["root"]), s["items"]),
    names=["image", "label"],
    transform=transforms.MultiViewTransform([view, view]),
)
loader = torch.utils.data.DataLoader(
    dataset,
    batch_size=s["batch_size"],
    shuffle=True,
    drop_last=True,
    num_workers=s["workers"],
)
layers = [torch.nn.Linear(s["width"], 512), torch.nn.BatchNorm1d(512), torch.nn.ReLU()]
if s["method"] == "contrastive":  # a choice
    layers += [torch.nn.Linear(512, 128), torch.nn.BatchNorm1d(128)]  # contrastive
    own = {"forward": forward.simclr, "simclr_loss": spt.losses.NTXEntLoss(temperature=0.2)}  # contrastive
else:  # a choice
    layers += [torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512), torch.nn.ReLU(), torch.nn.Linear(512, 512)]  # vicreg
    own = {"forward": forward.vicreg, "vicreg_loss": spt.losses.VICRegLoss()}  # vicreg
module = spt.Module(
    backbone=backbone(),
    projector=torch.nn.Sequential(*layers),
    optim={
        "optimizer": {"type": "AdamW", "lr": s["lr"], "weight_decay": s["weight_decay"]},
        "scheduler": {"type": "CosineAnnealingLR", "T_max": s["steps"]},
        "interval": "step",
    },
    **own,
)
trainer = lightning.Trainer(
    max_epochs=s["epochs"],
    accelerator="gpu" if s["device"] == "cuda" else "cpu",
    precision={"fp32": "32-true", "bf16": "bf16-mixed"}[s["precision"]],
    logger=False,
    enable_checkpointing=False,
    num_sanity_val_steps=0,
)
spt.Manager(trainer=trainer, module=module, data=spt.data.DataModule(train=loader))()
