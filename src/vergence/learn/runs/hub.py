"""A run as a folder that others can load, with a model card from its record; and to and from the Hugging Face Hub."""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vergence.utils.checks import counted, expect, shortened
from vergence.utils.files import explained

if TYPE_CHECKING:
    from vergence.learn.runs.run import Run

__all__ = ["from_pretrained", "push_to_hub", "save_pretrained"]

FILES = ("config.json", "model.safetensors", "detector.safetensors", "evaluation.json", "checksums.json", "metrics.jsonl")
CARD = """---
library_name: vergence
tags:
- representation-learning
- anomaly-detection
---

# {name}

An encoder with a density over its embeddings, trained with [Vergence](https://pypi.org/project/vergence/) {version}.

{facts}

## Use

```python
import vergence

run = vergence.Run.from_pretrained("{repository}")
z = run.embed(items)              # embeddings
scores = run.anomaly_score(items) # larger is more anomalous
```

## What the scores mean

{meaning}

## Evaluation

{evaluation}
"""
RATE = (
    "p-values are ranks among {n:,} items of the training data that no fit has seen. They hold for new items of the same source, "
    "and say nothing of others: calibrate with normal items of your own, `vergence score RUN NEW --calibration YOURS`."
)


def save_pretrained(run: "Run", folder: str | Path, *, name: str = "") -> Path:
    """Writes what is needed to load a run, and its model card ``README.md``, to a new folder, which is returned.

    Checkpoints are not among it. The detector has embeddings and names of 5,000 normal training items at most, and the
    description has the name of the data: look at them before others may see them.

    Args:
        run: A finished run.
        folder: Folder that is new or empty.
        name: Title of the card; by default the name of the run's folder.
    """
    folder = Path(folder)
    expect(not folder.exists() or not any(folder.iterdir()), f"a new folder at {folder}", "one with files", "name another")
    run.detector()
    with explained(folder, "the run itself is safe: choose another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(run.folder.path.iterdir()):
            if file.name in FILES:
                shutil.copy(file, folder / file.name)
        (folder / "README.md").write_text(_card(run, name or run.folder.path.name), encoding="utf-8")
    return folder


def push_to_hub(run: "Run", repository: str, *, private: bool = True, token: str | None = None) -> str:
    """Uploads what `save_pretrained` writes to a repository on the Hub, which is made if needed; returns its address.

    Args:
        run: A finished run.
        repository: ``USER/NAME``.
        private: Whether a new repository can be read by its owner alone.
        token: Of the Hub; by default that of ``hf auth login``.
    """
    hub = _hub()
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(run, folder, name=repository)
        try:
            api = hub.HfApi(token=token)
            api.create_repo(repository, private=private, exist_ok=True)
            return str(api.upload_folder(repo_id=repository, folder_path=folder))
        except (OSError, ValueError) as error:
            raise ValueError(f"expected to write {repository}, found: {shortened(error)}; log in with hf auth login") from None


def from_pretrained(source: str | Path, *, revision: str | None = None, token: str | None = None, **settings: Any) -> "Run":
    """Returns the run of a local folder, or of a repository ``USER/NAME`` on the Hub; runs no code of either.

    Args:
        source: Folder, or repository.
        revision: Of the repository.
        token: Of the Hub, for a private one.
        **settings: Of `vergence.load`.
    """
    from vergence.learn.runs.run import load

    if Path(source).is_dir():
        return load(source, **settings)
    try:
        folder = _hub().snapshot_download(str(source), revision=revision, token=token, allow_patterns=[*FILES])
    except (OSError, ValueError) as error:
        raise ValueError(f"expected a folder, or a repository on the Hub, at {source}, found: {shortened(error)}") from None
    return load(folder, **settings)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError("expected huggingface_hub, found none; pip install 'vergence[share]'") from None
    return huggingface_hub


def _card(run: "Run", repository: str) -> str:
    about, model, found = run.folder.metadata, run.folder.config.model, run.detector()
    items = f"{counted(about.n_train, 'item')}, {about.kind} of shape {about.shape}"
    rows = {
        "data": f"{run.folder.config.data.title}, {items}",
        "encoder": model.encoder.title,
        "objective": model.method or model.objective,
        "calibration": f"{len(found.calibration):,} items{'' if found.held_out else ', which the encoder was trained on'}",
    }
    return CARD.format(
        name=repository.rpartition("/")[2],
        repository=repository,
        version=run.folder.version,
        facts="\n".join(f"- {key}: {value}" for key, value in rows.items()),
        meaning=RATE.format(n=len(found.calibration)) + "".join(f"\n- {note}" for note in found.notes),
        evaluation="See `evaluation.json`." if (run.folder.path / "evaluation.json").is_file() else "Not evaluated.",
    )
