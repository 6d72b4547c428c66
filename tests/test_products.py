"""The product's commands where the trainer's packages are not installed, and what each of them loads."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

SETTINGS = {f"vergence.learn.{part}" for part in ("encoders.config", "training.config", "training.recipes")}  # without torch
BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torchvision", "lightning_fabric", "timm", "lightly", "efficientnet_lite_pytorch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from vergence.cli.commands import main
sys.argv = ["vergence", *sys.argv[1:]]
code = main()
print("loaded of learn:", *sorted(name for name in sys.modules if name.startswith("vergence.learn.") and "." in name[15:]))
sys.exit(code)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images, scores, a table and pairs, small."""
    place, r = tmp_path_factory.mktemp("product"), np.random.default_rng(0)
    (place / "images").mkdir()
    for i in range(24):
        Image.fromarray(r.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(place / "images" / f"{i:02d}.png")
    for name, n in (("good", 60), ("new", 20)):
        (place / f"{name}.csv").write_text("score\n" + "\n".join(f"{v:.5f}" for v in r.normal(size=n)) + "\n")
    x = r.normal(size=(80, 2))
    rows = "\n".join(f"{a:.4f},{a + 0.1 * b:.4f}" for a, b in x)
    (place / "table.csv").write_text(f"x,y\n{rows}\n")
    z = r.normal(size=(260, 3))
    np.savez(place / "pairs.npz", context=z[:200], target=z[:200] + 1)
    np.savez(place / "contexts.npz", context=z[200:])
    np.savez(place / "gallery.npz", target=z[200:] + 1)
    return place


@pytest.mark.parametrize(
    ("commands", "file"),
    [
        (["check images --workers 1 --map pca --out checked"], "checked/items.csv"),
        (["calibrate good.csv new.csv --out decided.csv"], "decided.csv"),
        (["density fit table.csv --target y --model gaussian --out d.safetensors"], "d.safetensors"),
        (["pairs fit pairs.npz --out m.safetensors", "match m.safetensors contexts.npz gallery.npz --out m.csv"], "m.csv"),
    ],
    ids=["check", "calibrate", "density", "match"],
)
def test_a_product_runs_without_the_trainer_and_its_packages(folder, commands, file):
    for command in commands:
        found = subprocess.run([sys.executable, "-c", BLOCKED, *command.split()], cwd=folder, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
        assert set(found.stdout.splitlines()[-1].split()[3:]) <= SETTINGS
    assert (folder / file).stat().st_size > 0
