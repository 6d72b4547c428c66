"""Valid files that the cases start from: a small run with all its files, density files, tables, images."""

import contextlib
import io
import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

import vergence
from vergence import mixtures
from vergence.learn.runs.page import write_report
from vergence.utils.parts import write_table

QUICK = {"epochs": 1, "batch_size": 16, "device": "cpu", "precision": "fp32", "workers": 0, "knn_every": 1}
MODELS = {"gaussian": {}, "mixture": {"n_components": 2}, "kernel": {}, "mdn": {"n_components": 2, "steps": 3}}


class Place:
    """A folder of valid files.

    Attributes:
        path: The folder.
        run: A run on vectors with a density, evaluated, with a report.
        images: A run on small images.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.run, self.images = path, path / "run", path / "pictures"
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            self._make()
        self.loaded = vergence.load(self.run, device="cpu")
        self.loaded_images = vergence.load(self.images, device="cpu")

    def _make(self):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(60, 6)).astype("f4"), rng.integers(0, 2, 60)
        np.savez(self.path / "data.npz", x=x, y=y)
        np.save(self.path / "data.npy", x)
        many, pixels = rng.normal(size=(150, 5)).astype("f4"), rng.integers(0, 255, (120, 8, 8), dtype=np.uint8)
        np.savez(self.path / "many.npz", x=many, y=rng.integers(0, 2, 150))
        np.save(self.path / "many.npy", many)
        np.save(self.path / "images.npy", pixels)
        np.savez(self.path / "pairs.npz", context=x[:, :2], target=x[:, 2:4])
        np.savez(self.path / "contexts.npz", context=x[:5, :2])
        rows = "\n".join(",".join(f"{v:.4f}" for v in row) for row in x[:, :3])
        (self.path / "pairs.csv").write_text(f"a,b,y\n{rows}\n")
        (self.path / "empty").mkdir()
        (self.path / "text.npz").write_text("no archive")
        self._make_images(rng)
        self._make_weights(x)
        vectors = {"objective": "gje", "encoder": "mlp", **QUICK}
        run = vergence.train(str(self.path / "data.npz"), out=self.run, projector=(4,), **vectors)
        vergence.evaluate(run)
        write_report(self.run)
        self._coarsen(run.folder)
        vergence.train(str(self.path / "photos"), out=self.images, objective="gje", size=8, projector=(4,), **QUICK)
        for name, settings in MODELS.items():
            kind = mixtures.get(name)
            known = {k: v for k, v in settings.items() if k in kind._get_param_names()}
            kind(random_state=0, **known).fit(x[:, :2], x[:, 2:4]).save(self.path / f"{name}.safetensors")

    def _coarsen(self, folder):
        """Keeps only the signs of large weights, so that a case that holds the file is small."""
        model, state = folder.load_model(), folder.load_checkpoint()
        for tensors in (model, state["model"], *state["optimizer"]["state"].values()):
            for name, x in tensors.items():
                if isinstance(x, torch.Tensor) and x.numel() > 2000 and x.is_floating_point():
                    tensors[name] = x.sign() * x.abs().mean()
        folder.save_model(model)
        folder.save_checkpoint(state)

    def _make_weights(self, x):
        state = {name: value.float() for name, value in self.network().state_dict().items()}
        torch.save({"state_dict": state, "epoch": 1}, self.path / "weights.pth")
        save_file(state, self.path / "weights.safetensors")
        columns = {"name": [str(i) for i in range(len(x))], "z": x, "label": np.arange(len(x)) % 2}
        write_table(self.path / "table.parquet", columns)

    @staticmethod
    def network():
        """Returns the network that the files of weights are made for."""
        return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))

    def _make_images(self, rng):
        (self.path / "photos").mkdir()
        for i in range(24):
            pixels = rng.integers(0, 255, (12, 10, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(self.path / "photos" / f"{i}.png")
        for name, mode, options in (
            ("a.jpg", "RGB", {}),
            ("b.png", "P", {}),
            ("c.png", "I;16", {}),
            ("d.jpg", "L", {"progressive": True}),
        ):
            base = Image.fromarray(rng.integers(0, 255, (12, 10, 3), dtype=np.uint8))
            image = base.convert("L").convert("I").convert("I;16") if mode == "I;16" else base.convert(mode)
            image.save(self.path / name, **options)

    def json(self, name):
        """Returns a JSON file of the run."""
        return json.loads((self.run / name).read_text())

    @contextlib.contextmanager
    def replaced(self, run: Path, name: str, data: bytes):
        """Puts other bytes in the place of a run's file for as long as the context lasts; checksums are left out meanwhile."""
        file, sums = run / name, run / "checksums.json"
        kept = {path: path.read_bytes() for path in (file, sums) if path.exists()}
        if name != sums.name:
            sums.unlink(missing_ok=True)
        file.write_bytes(data)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
            for path, content in kept.items():
                path.write_bytes(content)

    @contextlib.contextmanager
    def scratch(self):
        """Gives an empty folder, removed afterwards."""
        folder = self.path / "scratch"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def state_bytes(state):
    """Returns what torch.save writes."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()
