"""Features of a picture at every place, and of the whole, by a frozen network: tokens of a transformer, or two middle stages.

Shapes: a picture (3, H, W) in [0, 1]; cells (D, r, c); an embedding (D,).
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.data.pixels import resize
from vergence.images.patches import around
from vergence.images.timm_models import MEAN, SIZE, STD, read_input, require_timm, timm_file, timm_model, timm_tag
from vergence.utils.checks import expect, refuse
from vergence.utils.files import explained, replacing, sha256

__all__ = ["FrozenNetwork", "fetch", "named_network"]

STRIDES = (8, 16)  # of the two middle stages of a convolutional network
DEPTH = 2 / 3  # of a transformer's blocks, after which tokens are read
BEST = ("vit_small_patch16_dinov3.lvd1689m", "vit_small_patch14_dinov2.lvd142m")  # of timm, the first that is at hand
RECORD = "network.json"


class FrozenNetwork:
    """A network that is not trained: a picture -> features of its cells, and an embedding.

    Args:
        network: Maps images (B, 3, H, W) to embeddings (B, D). Its ``default_cfg``, as timm's networks have it, tells the size,
            mean and standard deviation of its input; else those of ImageNet.
        name: What it is called.
        license: License of its weights; empty where it is not known.

    Raises:
        ValueError: The network gives no embedding, or has no stage with places.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Conv2d(4, 5, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> cells, z = FrozenNetwork(net, "small").places_and_embedding(torch.rand(3, 40, 60))
        >>> tuple(cells.shape), tuple(z.shape)
        ((9, 28, 28), (5,))
    """

    def __init__(self, network: nn.Module, name: str, license: str = "") -> None:
        configuration = getattr(network, "default_cfg", None) or getattr(network, "pretrained_cfg", None)
        about = read_input(name, configuration) if configuration else None
        self.network, self.name, self.license = network.eval(), name, license
        own = getattr(getattr(network, "patch_embed", None), "img_size", None)
        self.side = own[0] if own else SIZE if about is None or about.size is None else about.size
        self.dtype = next((value.dtype for value in network.parameters()), torch.float32)
        mean, std = (MEAN, STD) if about is None else (about.mean, about.std)
        self.mean, self.std = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))
        self.stages = [] if hasattr(network, "forward_intermediates") else self._stages()

    @torch.inference_mode()
    def places_and_embedding(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns features (D, r, c) of the cells of a picture, and its embedding (D,)."""
        x = ((resize(x[None], self.side, self.side) - self.mean) / self.std).to(self.dtype)
        if hasattr(self.network, "forward_intermediates"):
            maps, z = self._intermediates(x)
        else:
            kept: dict[nn.Module, Tensor] = {}
            hooks = [stage.register_forward_hook(lambda m, _, out: kept.__setitem__(m, out)) for stage in self.stages]
            try:
                z = self.network(x)
            finally:
                for hook in hooks:
                    hook.remove()
            maps = [kept[stage] for stage in self.stages]
        rows, columns = maps[0].shape[2:]
        aligned = [F.interpolate(m, size=(rows, columns), mode="bilinear", align_corners=False) for m in maps]
        return around(torch.cat(aligned, 1))[0].clone(), z.flatten(1)[0].clone()

    @torch.inference_mode()
    def embed(self, x: Tensor) -> Tensor:
        """Returns the embeddings (B, D) of whole pictures (B, 3, side, side) in [0, 1]."""
        net: Any = self.network
        first = next(net.parameters(), x)
        x = ((x.to(first.device) - self.mean.to(first.device)) / self.std.to(first.device)).to(self.dtype)
        if hasattr(net, "forward_intermediates"):
            return torch.as_tensor(net.forward_head(net.forward_features(x), pre_logits=True)).flatten(1)
        return torch.as_tensor(net(x)).flatten(1)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns features (D, r, c) of the cells of a picture."""
        return self.places_and_embedding(x)[0]

    def _intermediates(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Returns maps of a network of timm, and its embedding."""
        net: Any = self.network
        strides = [stage["reduction"] for stage in net.feature_info] if hasattr(net, "feature_info") else []
        if len(set(strides)) > 1:
            near = sorted({min(range(len(strides)), key=lambda i: abs(strides[i] - stride)) for stride in STRIDES})
        else:
            near = [max(0, round(DEPTH * len(net.blocks)) - 1)]
        final, maps = net.forward_intermediates(x, indices=near)
        return list(maps), net.forward_head(final, pre_logits=True)

    @torch.inference_mode()
    def _stages(self) -> list[nn.Module]:
        """Returns the last of the outermost modules whose output has each of the strides."""
        found: dict[int, tuple[int, nn.Module]] = {}
        depth = {module: name.count(".") for name, module in self.network.named_modules() if name}

        def seen(module: nn.Module, _: Any, out: Any) -> None:
            stride = self.side // out.shape[2] if isinstance(out, Tensor) and out.ndim == 4 and out.shape[2] else 0
            if stride in STRIDES and depth[module] <= found.get(stride, (depth[module], module))[0]:
                found[stride] = depth[module], module

        hooks = [module.register_forward_hook(seen) for module in depth]
        try:
            z = self.network(torch.zeros(1, 3, self.side, self.side, dtype=self.dtype))
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"'{self.name}' does not take pictures of {self.side} pixels: {str(error).splitlines()[0]}"
            ) from None
        finally:
            for hook in hooks:
                hook.remove()
        expect(isinstance(z, Tensor) and z.ndim >= 2, f"embeddings (B, D) of '{self.name}'", type(z).__name__)
        expect(found, f"a stage of '{self.name}' with places", "none of a stride of 8 or 16", "choose another network")
        return [found[stride][1] for stride in sorted(found)]


def named_network(name: str) -> FrozenNetwork:
    """Returns a network by ``timm:NAME``, with timm's pretrained weights, or by the folder that `fetch` wrote.

    Raises:
        ValueError: timm does not have it, or its weights are not at hand.
    """
    folder = Path(name)
    if (folder / RECORD).is_file():
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        name, file, license = record["name"], folder / record["file"], record["license"]
        expect(sha256(file) == record["sha256"], f"the weights that {folder} was fetched with", "others", "fetch them again")
    else:
        expect(name.startswith("timm:"), "timm:NAME, or a folder that fetch wrote", f"'{name}'", "correct it")
        name = timm_tag(name.removeprefix("timm:"))
        file, license = timm_file(name), license_of(name)
    about = read_input(name, require_timm(name).get_pretrained_cfg(name).to_dict())
    return FrozenNetwork(timm_model(name, 3, about.size or SIZE, file), f"timm:{name}", license)


def license_of(name: str) -> str:
    """Returns the license of a model's weights as timm records it; empty where it does not."""
    configuration = require_timm(name).get_pretrained_cfg(name)
    return str(getattr(configuration, "license", None) or "")


def at_hand() -> tuple[FrozenNetwork | None, str]:
    """Returns the best network whose weights are in the cache or can be loaded, and a line about it; None for none."""
    reasons = []
    for name in BEST:
        try:
            return named_network(f"timm:{name}"), f"timm:{name}, whose weights are at hand"
        except ValueError as error:
            reasons.append(str(error))
    return None, f"patches, since no network is at hand: {reasons[0]}"


def fetch(name: str, to: str | Path) -> Path:
    """Writes a network's weights to a folder, for a machine without a network: name, size, SHA-256 and license next to them.

    Args:
        name: ``timm:NAME``, with or without a tag.
        to: Folder.

    Raises:
        ValueError: timm has no such weights, they cannot be loaded, or the folder cannot be written.
    """
    if not name.startswith("timm:"):
        refuse("timm:NAME", f"'{name}'", "timm.list_pretrained() lists the names")
    tag, folder = timm_tag(name.removeprefix("timm:")), Path(to)
    file = timm_file(tag)
    with explained(folder, "choose another --to"):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / file.name) as part:
            part.write_bytes(file.read_bytes())
        record = {
            "name": tag,
            "file": file.name,
            "bytes": file.stat().st_size,
            "sha256": sha256(file),
            "license": license_of(tag),
        }
        with replacing(folder / RECORD) as part:
            part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return folder
