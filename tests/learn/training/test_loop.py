"""The loop: a kill changes nothing, N processes are one, and it learns from real images."""

import itertools
import json
import math
import re
import signal
import subprocess
import time

import pytest
import torch
from tests import forked
from tests.learn.training.test_processes import largest_difference
from tests.refusals import refuses

import vergence
from vergence.learn.encoders.config import PatchSettings
from vergence.learn.encoders.patch_maps import PatchMaps
from vergence.learn.methods.paired import PairedMethod
from vergence.learn.objectives.vje import VJE
from vergence.learn.runs.page import write_report
from vergence.learn.training import loop
from vergence.learn.training.config import FitConfig
from vergence.learn.training.optimizers import build_optimizer, learning_rate, set_learning_rate

pytestmark = pytest.mark.float32

OPTIONS = ("--device", "cpu", "--set", "knn_every=0")


def train(out, *arguments):
    return forked.run("train", "digits", "--out", out, *OPTIONS, *arguments, check=True)


def test_the_encoder_may_learn_more_slowly_than_the_objective():
    method = PairedMethod(torch.nn.Linear(5, 8), VJE(8))
    config = FitConfig(lr=0.1, encoder_lr=0.25)
    groups = build_optimizer(config, method).param_groups
    assert [group["scale"] for group in groups] == [0.25, 1.0]
    assert {id(p) for p in groups[0]["params"]} == {id(p) for p in method.encoder.parameters()}
    assert {id(p) for p in groups[1]["params"]} == {id(p) for p in method.objective.parameters()}
    set_learning_rate(optimizer := build_optimizer(config, method), 0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.025, 0.1]
    assert len(build_optimizer(FitConfig(), method).param_groups) == 1


def test_machines_that_do_not_know_of_each_other_are_not_waited_for(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(ValueError, match=r"expected 2 processes.*torchrun --nproc-per-node 1, and --nnodes 2, on each machine"):
        loop.launch(FitConfig(nodes=2, device="cpu"))


def test_schedule_warms_up_and_ends_at_zero():
    config = FitConfig(epochs=20, lr=0.1, warmup_epochs=2)
    rates = [learning_rate(config, step, 10) for step in range(200)]
    assert rates[0] == pytest.approx(0.1 / 20) and max(rates) == pytest.approx(0.1)
    assert all(a < b for a, b in itertools.pairwise(rates[:20]))
    assert all(a > b for a, b in itertools.pairwise(rates[20:]))
    assert rates[110] == pytest.approx(0.05, rel=1e-2) and rates[-1] < 1e-4
    expected = 0.05 * (1 + math.cos(math.pi * (57 - 20) / 180))
    assert rates[57] == pytest.approx(expected)


@pytest.mark.parametrize("warmup", [0.1, 0.3, 0.9, 1.25])
def test_a_warm_up_that_ends_within_an_epoch_does_not_pass_the_peak(warmup):
    config = FitConfig(epochs=3, lr=1.0, warmup_epochs=warmup)
    rates = [learning_rate(config, step, 4) for step in range(12)]
    assert max(rates) <= 1.0 and rates[math.ceil(4 * warmup) - 1] == 1.0
    assert all(a <= b for a, b in itertools.pairwise(rates[: math.ceil(4 * warmup)]))


@pytest.mark.parametrize("tiles", [False, True])
def test_auto_takes_bfloat16_on_a_cpu_with_matrix_tiles_alone(monkeypatch, tiles):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert loop.precision(FitConfig(), "cpu") == ("bf16-mixed" if tiles else "32-true")
    assert loop.precision(FitConfig(precision="bf16"), "cpu") == "bf16-mixed"
    maps = PatchMaps(1, PatchSettings(atoms=4)).float()
    assert maps.arithmetic() == (torch.bfloat16 if tiles else torch.float32)
    assert maps.double().arithmetic() == torch.float64


@pytest.mark.parametrize(("eta", "clip"), [(0.001, False), (0.02, True), (3.0, True)])
def test_lars_is_the_formula_of_the_paper_in_loops(eta, clip):
    torch.manual_seed(0)
    method = PairedMethod(torch.nn.Linear(4, 3), None)
    settings = {"lr": 0.5, "weight_decay": 0.01, "trust": eta, "trust_clip": clip}
    optimizer = build_optimizer(FitConfig(optimizer="lars", **settings), method)
    w, b = method.encoder.parameters()
    expect_w, expect_b, vw, vb = w.detach().clone(), b.detach().clone(), 0.0, 0.0
    for _ in range(3):
        gw, gb = torch.randn(3, 4), torch.randn(3)
        w.grad, b.grad = gw.clone(), gb.clone()
        optimizer.step()
        rate = eta * float(expect_w.norm() / (gw.norm() + 0.01 * expect_w.norm()))
        g = (min(rate, 0.5) / 0.5 if clip else rate) * (gw + 0.01 * expect_w)
        vw, vb = 0.9 * vw + g, 0.9 * vb + gb
        expect_w, expect_b = expect_w - 0.5 * vw, expect_b - 0.5 * vb
    assert torch.allclose(w, expect_w, atol=1e-6) and torch.allclose(b, expect_b, atol=1e-6)


def test_lars_adapts_weights_of_every_part_and_leaves_biases_and_norms_to_plain_sgd():
    method = PairedMethod(torch.nn.Linear(4, 8), VJE(8))
    groups = build_optimizer(FitConfig(optimizer="lars", encoder_lr=0.5, weight_decay=0.1), method).param_groups
    shown = [({p.ndim for p in g["params"]}, g["always_adapt"], g["weight_decay"], g["scale"]) for g in groups]
    assert shown == [({2}, True, 0.1, 0.5), ({2}, True, 0.1, 1.0), ({1}, False, 0.0, 0.5), ({1}, False, 0.0, 1.0)]
    assert sum(len(g["params"]) for g in groups) == len(list(method.parameters()))


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    settings = "--objective vje --epochs 2 --batch-size 64 --limit 320 --precision fp64 --optimizer sgd --lr 0.01".split()
    train(tmp_path / "one", *settings)
    both = train(tmp_path / "two", *settings, "--devices", "2")
    assert both.stderr.count("the network starts from random weights") == 1, "a note stands once, not once for each process"
    assert json.loads((tmp_path / "two" / "config.json").read_text())["metadata"]["processes"] == 2
    assert largest_difference(tmp_path / "one", tmp_path / "two") < 1e-9
    train(tmp_path / "other", *settings, "--seed", "1")
    assert largest_difference(tmp_path / "one", tmp_path / "other") > 1e-3, "the check could not tell runs apart"


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_cleanly_and_the_run_goes_on(tmp_path, signum):
    command = ["train", "digits", "--out", tmp_path / "run", "--recipe", "vje_small", "--epochs", "400", "--device", "cpu"]
    process = forked.popen(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signum)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 128 + signum, message
    assert "Traceback" not in message and f"vergence train --resume {tmp_path / 'run'}" in message
    assert torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)["step"] > 0
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_collapsing_run_warns_and_is_stopped_under_strict(tmp_path):
    settings = {"objective": "tests.collapsing:Constant", "epochs": 12, "batch_size": 64, "optimizer": "adamw", "lr": 1e-2}
    settings |= {"device": "cpu", "precision": "fp32", "knn_every": 0, "limit": 512}
    refuses(r"collapses .* Try .*`strict=True`", vergence.train, "digits", out=tmp_path / "strict", strict=True, **settings)
    assert "collapses" in (tmp_path / "strict" / "log.txt").read_text()
    assert not (tmp_path / "strict" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["tests.collapsing:Constant", "vje"])
def test_a_run_that_ends_collapsed_says_so_at_its_end_and_on_its_page(tmp_path, objective):
    settings = ["--epochs", "12", "--batch-size", "64", "--optimizer", "adamw", "--lr", "0.01", "--limit", "512"]
    ended = train(tmp_path / "run", "--objective", objective, "--precision", "fp32", *settings).stderr.splitlines()
    page = write_report(tmp_path / "run").read_text()
    if objective == "vje":
        assert "training ended" not in "".join(ended) and "The training ended" not in page
    else:
        advice = r"warning: the training ended, but the embedding collapses .*--set .projector=.*--recipe patches"
        assert re.search(advice, ended[-1]) and "The training ended, but the embedding collapses" in page


OUTSIDE = """
import torch
from vergence.learn.objectives import Objective

class Outside(Objective):
    def __init__(self, dim, *, term="distance", name="spread", size=1):
        super().__init__()
        self.dim, self.term, self.name, self.size = dim, term, name, size

    def forward(self, za, zb):
        return {self.term: (za - zb).square().sum(-1).mean() - za.std(0).mean()}

    def diagnostics(self, za, zb):
        return {self.name: za.std(0)[: self.size], "count": 3}
"""


def test_numbers_of_an_objective_outside_the_library_do_not_damage_the_rows(tmp_path, monkeypatch):
    (tmp_path / "rows.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {"objective": "rows:Outside", "epochs": 1, "batch_size": 64, "limit": 128, "device": "cpu", "knn_every": 0}
    run = vergence.train("digits", out=tmp_path / "run", **settings)
    (row,) = run.folder.metrics()
    assert isinstance(row["spread"], float) and row["count"] == 3 and row["step"] == 1
    for options, words in (
        ({"term": "step"}, "expected names of terms other than step, .*, found 'step'; give it another name"),
        ({"term": "loss"}, "found 'loss'"),
        ({"name": "lr"}, "expected names of diagnostics other than .*, found 'lr'"),
        ({"name": "distance"}, "expected names of diagnostics other than .*, distance, found 'distance'"),
        ({"size": 2}, "expected a number for each name of diagnostics, found spread of type Tensor"),
    ):
        refuses(words, vergence.train, "digits", out=tmp_path / "refused", options=options, **settings)


def test_the_trace_trap_is_told_once_with_its_cause(tmp_path, capsys):
    settings = {"objective": "gje", "options": {"loss": "naive", "shrinkage": 0.0}, "epochs": 15, "batch_size": 128}
    settings |= {"optimizer": "adamw", "lr": 1e-2}
    settings |= {"device": "cpu", "precision": "fp32", "knn_every": 0, "limit": 512, "projector": (8,), "encoder": "mlp"}
    vergence.train("digits", out=tmp_path / "run", **settings)
    said = capsys.readouterr().err
    assert said.count("trace trap") == 1 and "mi_kl" in said
    assert "trace trap" in (tmp_path / "run" / "log.txt").read_text()


def test_a_teacher_follows_the_student_after_the_optimizer(tmp_path):
    settings = {"objective": "vje", "epochs": 1, "limit": 256, "batch_size": 128, "device": "cpu", "precision": "fp32"}
    for momentum, least, most in ((0.5, 1e-9, 0.1), (0.0, 0, 0)):  # without a past it is the student
        method = vergence.train("digits", out=tmp_path / str(momentum), teacher=momentum, knn_every=0, **settings).method
        teacher, student = method.teacher.state_dict(), method.branch("context").state_dict()
        gap = max((teacher[name] - student[name]).abs().max().item() for name in student)
        assert teacher.keys() == student.keys() and least <= gap <= most
        assert not any(p.requires_grad for p in method.teacher.parameters())


@pytest.mark.parametrize(("optimizer", "known"), [("adamw", "exp_avg"), ("lars", "momentum_buffer")])
def test_an_optimizer_knows_nothing_of_frozen_parameters(optimizer, known, tmp_path):
    """Its averages of their gradients start when they are released, as in the released codes."""
    settings = {"objective": "swav", "epochs": 1, "limit": 512, "batch_size": 128, "calibration_share": 0.0, "knn_every": 0}
    settings |= {"device": "cpu", "precision": "fp32", "optimizer": optimizer}
    for frozen in (3, 4):
        settings["options"] = {"prototypes": 8, "frozen_steps": frozen}
        run = vergence.train("digits", out=tmp_path / f"{frozen}", **settings)
        state = run.folder.load_checkpoint()["optimizer"]["state"]
        trained = sum(p.requires_grad for p in run.method.parameters())
        assert sum(known in kept for kept in state.values()) == trained - (frozen == 4)
        if optimizer == "adamw":
            assert sorted(int(kept["step"]) for kept in state.values()) == [1] * (frozen == 3) + [4] * (trained - 1)


def test_the_norm_of_all_gradients_is_clipped(tmp_path):
    """One step of SGD is the rate times the gradient, so that two bounds differ by as much as the steps."""
    settings = {"objective": "vje", "epochs": 1, "limit": 128, "batch_size": 128, "calibration_share": 0.0, "device": "cpu"}
    settings |= {"precision": "fp32"}
    settings |= {"optimizer": "sgd", "lr": 1.0, "encoder_lr": 1.0, "weight_decay": 0.0, "warmup_epochs": 0, "knn_every": 0}
    moved = []
    for clip in (0.05, 0.1):
        method = vergence.train("digits", out=tmp_path / f"{clip}", clip=clip, **settings).method
        moved.append(torch.cat([p.detach().flatten() for p in method.parameters()]))
    assert (moved[1] - moved[0]).norm().item() == pytest.approx(0.05, rel=1e-3)
