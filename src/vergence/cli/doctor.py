"""``vergence doctor``."""

import contextlib
import json
import os
import platform
import shutil
import textwrap
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from packaging.requirements import Requirement
from tyro.conf import arg

NAMED = ("vergence", "torch", "torchvision", "numpy", "scikit-learn")  # packages whose versions are printed
USES = {  # of the extras in pyproject.toml
    "cloud": "data on s3:// and gs://", "cluster": "Scorer and Embedder in Ray", "excel": "tables in .xlsx files",
    "microscopy": "TIFF files that Pillow cannot read",
    "export": "vergence export to ONNX", "eyes": "a small network for check that works offline",
    "figures": "compare --figure", "pretrained": "networks of timm, masked_autoencoder, i_jepa, LARS",
    "serve": "vergence serve", "share": "push_to_hub, and from_pretrained from the Hub",
}  # fmt: skip
LABEL = 14  # characters of a name and the space after it


@dataclass(kw_only=True)
class Doctor:
    """Show versions, hardware and folders, and which packages are missing for what."""

    json: Annotated[bool, arg(help="Print JSON.")] = False


def doctor(command: Doctor) -> None:
    """Runs ``vergence doctor``."""
    needed = [Requirement(text) for text in metadata.requires("vergence") or ()]
    names = metadata.metadata("vergence").get_all("Provides-Extra") or ()
    found = {"missing": _missing(needed), **_found(), "extras": {name: _missing(needed, name) for name in names}}
    if command.json:
        print(json.dumps(found, indent=2))
        return
    lacking, extras = ", ".join(found.pop("missing")), found.pop("extras")
    print(f"Missing or too old: {lacking}." if lacking else "All required packages are installed.")
    _print(found)
    print("\nOptional: pip install 'vergence[NAME]'")
    _print({name: f"{'needs ' + ', '.join(lack) if lack else 'installed'}: {USES[name]}" for name, lack in extras.items()})


def _missing(needed: list[Requirement], extra: str = "") -> list[str]:
    """Returns which packages that every use requires, or an extra, are absent or too old."""
    found = []
    for one in needed:
        always, asked = (one.marker is None or one.marker.evaluate({"extra": name}) for name in ("", extra))
        if not asked or always != (not extra):
            continue
        with contextlib.suppress(metadata.PackageNotFoundError):
            if one.specifier.contains(metadata.version(one.name), prereleases=True):
                continue
        found.append(f"{one.name}{one.specifier}")
    return found


def _found() -> dict[str, Any]:
    """Returns what this process runs on, and where it looks for files."""
    import torch

    from vergence.images.frozen import CACHE, at_hand
    from vergence.utils.devices import total_memory

    gpu, network = torch.cuda.is_available(), at_hand()
    return {
        **{name: metadata.version(name) for name in NAMED}, "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "threads": f"{torch.get_num_threads()} (the machine has {os.cpu_count()} cores)",
        "memory": f"{total_memory(torch.device('cpu')) / 1e9:.0f} GB",
        "GPU": torch.cuda.get_device_name() if gpu else "none that CUDA finds",
        "check uses": network.name if network else "patches (no network was found)", "networks in": str(CACHE),
        "data in": f"{Path('data').absolute()} (change it with --data-root)",
        "free disk": f"{shutil.disk_usage('.').free / 1e9:.0f} GB in this folder",
    }  # fmt: skip


def _print(lines: dict[str, str]) -> None:
    """Prints names and texts in two columns, as wide as the terminal."""
    width = max(40, shutil.get_terminal_size().columns)
    for name, text in lines.items():
        print(textwrap.fill(f"{name:{LABEL}}{text}", width, subsequent_indent=" " * LABEL, break_on_hyphens=False))
