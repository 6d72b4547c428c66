"""Several processes train every objective and method as one does: losses, weights, banks, mixtures, teachers, closed forms.

VERGENCE_PROCESSES=4 compares four processes with one in place of two.
"""

import json
import os
import socket
import traceback
import warnings

import pytest
import torch
from safetensors.torch import load_file
from tests.learn.training.test_stopping import SMALL

import vergence
from vergence.learn import methods, objectives

pytestmark = pytest.mark.float32

CASES = {
    **{name: {} for name in objectives.names()},
    "gje moving": {"loss": "joint_kl", "likelihood": "ema"},
    "gmje": {"components": 3},
    "gmje gradient": {"fit": "gradient", "components": 3},
    "gmje_em": {"components": 3},
    "gmje_gng": {"max_nodes": 4, "items_per_node": 16.0},
    "gmje_mdn": {"components": 3},
    "gmje_smc": {"bank": 96},
    "gmje_smc teacher": {"bank": 96},
    "jepa teacher": {},
    "lejepa": {"slices": 8},
    "simsiam": {"hidden": 8},
    "swav": {"prototypes": 8, "frozen_steps": 1},
    "byol teacher": {"hidden": 8},
    "moco teacher": {"hidden": 8},
    "vssl teacher": {"loss": "analytic"},
    **{name: {} for name in ("contrastive crops", "lejepa crops", "gmje_smc teacher crops")},  # three views and a small crop
    "swav crops": {"prototypes": 8, "frozen_steps": 1},
}
NORMS = {"simsiam": "batch_last", "vicreg": "batch", "moco teacher": "batch_last"}  # of projectors; layer in the other cases
PATCHES = "patches:atoms=16,patch=3,directions=20,dim=8"
STAGES = {  # closed forms of five blocks of images, a network behind one, and one that learns it
    "patches": {"recipe": "patches", "encoder": PATCHES, "limit": 1100},
    "patches second": {"recipe": "patches", "encoder": PATCHES.replace("patch=3", "patch=2,stride=1,second=12"), "limit": 1100},
    "patches behind": {"recipe": "patches_vje", "encoder": PATCHES.replace(":", "-mlp:"), "epochs": 1, "batch_size": 64},
    "distilled": {"recipe": "distilled_contrastive", "distill": PATCHES, "epochs": 1, "batch_size": 64, "distill_epochs": 2},
}
PROCESSES = int(os.environ.get("VERGENCE_PROCESSES", "2"))
MODALITIES = {"modalities gje": "gje", "modalities vicreg": "vicreg"}  # three, of which rows are missing
NAMES = [*CASES, *methods.names(), *STAGES, *MODALITIES]


def trained(name, out, devices, seed=0):
    """Trains some steps on digits."""
    settings = {"precision": "fp64", "device": "cpu", "devices": devices, "seed": seed, "limit": 192, "threads": 1}
    steps = {"epochs": 1, "batch_size": 64, "optimizer": "sgd", "lr": 0.01, "knn_every": 0}
    data = "digits"
    if name in STAGES:
        settings |= STAGES[name]
    elif name in MODALITIES:
        x = torch.randn(240, 6, generator=torch.Generator().manual_seed(0))
        table = torch.where(torch.arange(240)[:, None] % 5 > 0, x[:, :2], torch.nan)
        data = {"a": x, "b": x[:, :4] + 0.1 * x.roll(1, 1)[:, :4], "c": table}
        settings |= {**steps, "objective": MODALITIES[name], "projector": (8, 4), "projector_norm": "batch"}
    elif name in methods.names():
        options, encoder = SMALL.get(name, ({}, "small"))
        settings |= {**steps, "method": name, "options": options, "encoder": encoder, "lr": 1e-3}
    else:
        projector = (4,) if name not in NORMS else (8, 4)
        teacher = 0.9 if "teacher" in name else False
        settings |= {**steps, "objective": name.split()[0], "options": CASES[name], "teacher": teacher}
        settings |= {"projector": projector, "projector_norm": NORMS.get(name, "layer")}
    settings |= {"n_views": 3, "local_views": 1} if "crops" in name else {}
    vergence.train(data, out=out, **settings)


def work(rank, port, folder):
    """One of several processes, as a launcher outside starts them; all cases in one group, which is slow to start."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": PROCESSES, "LOCAL_RANK": rank, "NODE_RANK": 0}
    os.environ.update({key: str(value) for key, value in where.items()})
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in NAMES:
        try:
            trained(name, folder / name, devices=PROCESSES)
        except Exception:
            (folder / f"{name}.txt").write_text(traceback.format_exc())
    torch.distributed.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A folder of runs by several processes."""
    folder = tmp_path_factory.mktemp("several")
    torch.multiprocessing.spawn(work, (free_port(), folder), nprocs=PROCESSES)
    return folder


def losses(run):
    """Returns the losses of a run; of a closed form, which has none, its mean eigenvalue."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [row[key] for row in rows for key in ("loss", "mean_eigenvalue") if key in row]
    assert found
    return found


def largest_difference(a, b):
    """Returns the largest difference of two saved states, infinities alike being none."""
    a, b = (load_file(run / "model.safetensors") for run in (a, b))
    assert a.keys() == b.keys()
    return max(torch.where(a[k] == b[k], 0.0, (a[k].double() - b[k].double()).abs()).max().item() for k in a)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_several_processes_are_one(name, several, tmp_path):
    assert not (several / f"{name}.txt").exists(), (several / f"{name}.txt").read_text()
    trained(name, tmp_path, devices=1)
    assert json.loads((several / name / "config.json").read_text())["metadata"]["processes"] == PROCESSES
    assert largest_difference(tmp_path, several / name) < 1e-9
    assert losses(tmp_path) == pytest.approx(losses(several / name), abs=1e-9)
