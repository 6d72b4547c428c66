"""The loop with methods on images: a run that dies goes on bit for bit, and two processes train as one."""

import io
import multiprocessing
import os
import socket
import traceback
import warnings

import pytest
import torch

from vergence import methods
from vergence.data.sources import open_data
from vergence.training import build, loop, recipes
from vergence.training.metrics import MemoryRecorder

pytestmark = pytest.mark.float32

VIT = "timm:vit_tiny_patch16_224,patch_size=2,embed_dim=12,depth=1,num_heads=3,class_token=False,global_pool=avg"
SMALL = {
    "masked_autoencoder": ({"decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}, VIT),
    "i_jepa": ({"predictor_width": 8, "predictor_depth": 1, "predictor_heads": 2, "momentum": 0.5}, VIT),
    "dino": ({"outputs": 8, "hidden": 8, "bottleneck": 4, "local_crops": 1, "momentum": 0.5}, "small"),
}


class Kept(MemoryRecorder):
    """A recorder that keeps checkpoints and the model as bytes, as a folder does."""

    def __init__(self):
        super().__init__()
        self.checkpoint = self.model = None

    def save_checkpoint(self, state):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self.checkpoint = buffer.getvalue()

    def load_checkpoint(self):
        return None if self.checkpoint is None else torch.load(io.BytesIO(self.checkpoint), weights_only=True)

    def save_model(self, state):
        self.model = {name: tensor.clone() for name, tensor in state.items()}


def trained(name, recorder, *, devices=1, seed=0, progress=None, precision=None):
    """Trains 6 steps of 32 digits as `vergence.train` does; in double precision where runs differ by rounding."""
    exact = progress is not None
    options, encoder = SMALL.get(name, ({}, "small"))
    config = recipes.override(
        recipes.get(recipes.of_method(name), "digits"), encoder=encoder, options=options, epochs=2, batch_size=32, limit=96,
        precision=precision or ("fp32" if exact else "fp64"), device="cpu", devices=devices, threads=1, seed=seed, knn_every=0,
        checkpoint_seconds=0.0, optimizer="adamw" if exact else "sgd", lr=1e-3, calibration_share=0.0, warmup_epochs=0,
    )  # fmt: skip
    fabric = loop.launch(config.fit)
    opened = open_data(config.data)
    mean, std = build.statistics(opened.train)
    method = build.initial_method(config, (1, 8, 8), None, mean, std)
    views = build.make_views(opened, config.views, (1, 8, 8))
    loop.fit(fabric, method, opened.train, views, config.fit, recorder, progress=progress, warn=lambda message: None)
    return recorder


class Died(BaseException):
    """The process ends without another word."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "fp32") for name in methods.names()), ("variational_autoencoder", "fp64")]
)
def test_a_run_that_dies_goes_on_bit_for_bit(name, precision):
    def die(step, row):
        if step == 4:
            raise Died

    whole, killed = trained(name, Kept(), progress=lambda step, row: None, precision=precision), Kept()
    with pytest.raises(Died):
        trained(name, killed, progress=die, precision=precision)
    assert killed.model is None and killed.load_checkpoint()["step"] == 3
    trained(name, killed, progress=lambda step, row: None, precision=precision)
    assert whole.model.keys() == killed.model.keys()
    assert all(torch.equal(whole.model[key], killed.model[key]) for key in whole.model)
    assert [row["loss"] for row in whole.rows] == [row["loss"] for row in killed.rows]


def work(rank, port, folder):
    """One of two processes; all methods in one group."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "NODE_RANK": 0}
    os.environ.update({key: str(value) for key, value in where.items()})
    warnings.simplefilter("ignore")
    for name in methods.names():
        try:
            found = trained(name, Kept(), devices=2)
            if rank == 0:
                torch.save({"model": found.model, "losses": [row["loss"] for row in found.rows]}, folder / f"{name}.pt")
        except Exception:
            (folder / f"{name}.txt").write_text(traceback.format_exc())
    torch.distributed.destroy_process_group()
    os._exit(0)  # what the test holds is the parent's to close


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A folder of states that two processes trained; they are forked, since importing all packages anew takes longest."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads in the parent
        processes = [context.Process(target=work, args=(rank, port, folder)) for rank in range(2)]
        for process in processes:
            process.start()
    for process in processes:
        process.join(240)
    return folder


def difference(a, b):
    assert a.keys() == b.keys()
    return max((a[key].double() - b[key].double()).abs().max().item() for key in a)


@pytest.mark.slow
@pytest.mark.parametrize("name", methods.names())
def test_two_processes_are_one(name, two):
    assert not (two / f"{name}.txt").exists(), (two / f"{name}.txt").read_text()
    found, one = torch.load(two / f"{name}.pt", weights_only=True), trained(name, Kept())
    assert difference(one.model, found["model"]) < 1e-9
    assert [row["loss"] for row in one.rows] == pytest.approx(found["losses"], abs=1e-9)


def test_the_comparison_tells_runs_apart(two):
    found = torch.load(two / "dino.pt", weights_only=True)
    assert difference(trained("dino", Kept(), seed=1).model, found["model"]) > 1e-3
