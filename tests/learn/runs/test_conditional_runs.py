"""Runs with a conditional density: two encoders, pairs of unlike kinds, teachers, conditionals, retrieval and samples."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from tests.refusals import refuses
from torch import Tensor

import vergence
from vergence.data.arrays import from_array
from vergence.data.config import DataConfig
from vergence.data.items import PairItems
from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.densities.retrieval import retrieve
from vergence.learn.objectives.core import Objective
from vergence.learn.objectives.gje import GJE
from vergence.learn.runs import rows
from vergence.learn.runs.embed import write_embeddings
from vergence.learn.runs.evaluate import evaluate
from vergence.learn.runs.page import write_report
from vergence.learn.training import build as building
from vergence.learn.training.build import build_method
from vergence.learn.training.config import ModelConfig, RunConfig

pytestmark = pytest.mark.float32

QUICK = {"epochs": 1, "batch_size": 64, "limit": 256, "device": "cpu", "precision": "fp32", "knn_every": 0}
GAUSSIAN = {"objective": "gje", "projector": (8,), **QUICK}
KINDS = {"halves": {}, "vector_image": {"encoder": "mlp", "target_encoder": "small"}}


def test_labels_that_name_the_pair_give_no_accuracies():
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    run = vergence.train((x, x + 1), labels=np.arange(300), **GAUSSIAN | {"limit": None})
    assert "no accuracies" in evaluate(run, probes=False).protocol.note


def digits():
    found = load_digits()
    return (found.images[:400] * 15).astype(np.uint8), found.target[:400]


def write_pairs(folder, kind):
    images, labels = digits()
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(10, 5))[labels] + 0.1 * rng.normal(size=(400, 5))).astype(np.float32)
    arrays = {"halves": (images[:, :, :4], images[:, :, 4:]), "vector_image": (vectors, images)}
    np.savez(folder / f"{kind}.npz", context=arrays[kind][0], target=arrays[kind][1], labels=labels)
    return folder / f"{kind}.npz"


@pytest.fixture(scope="module", params=KINDS)
def pairs(request, tmp_path_factory):
    """A run on pairs, and the file that they come from."""
    folder = tmp_path_factory.mktemp(request.param)
    source = write_pairs(folder, request.param)
    with torch.random.fork_rng():
        return vergence.train(str(source), out=folder / "run", **GAUSSIAN, **KINDS[request.param]), source


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with torch.random.fork_rng():
        return vergence.train("digits", out=tmp_path_factory.mktemp("gje") / "run", **GAUSSIAN)


def images(n=5):
    return torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_pairs_of_every_kind_train_and_come_back(pairs):
    run, source = pairs
    again = vergence.load(run.folder.path, device="cpu")
    for side in ("context", "target"):
        z = run.embed(source, side=side, projected=True)
        assert z.shape == (400, 8) and torch.isfinite(z).all()
        assert torch.equal(z, again.embed(source, side=side, projected=True))
    assert run.embed(source, side="target").shape == (400, 256)
    assert not torch.equal(run.embed(source, projected=True), run.embed(source, side="target", projected=True))
    assert torch.equal(run.conditional(source).mean, again.conditional(source).mean)


def test_a_side_takes_its_own_items_in_every_form(pairs):
    run, source = pairs
    with np.load(source) as arrays:
        both = {side: arrays[side] for side in ("context", "target")}
    items = PairItems(*(from_array(both[side]) for side in ("context", "target")))
    for side, array in both.items():
        expected = run.embed(source, side=side, projected=True)
        np.save(source.parent / f"{side}.npy", array)
        for form in (array, items, tuple(both.values()), source.parent / f"{side}.npy"):
            assert torch.equal(run.embed(form, side=side, projected=True), expected), side
    refuses("as the model was trained on", run.embed, np.zeros((4, 3), dtype=np.float32), side="target")


def test_pairs_are_evaluated_embedded_and_reported(pairs, tmp_path):
    run, source = pairs
    record = evaluate(run, probes=False)
    assert record.representations["z"].knn[1].majority > 0.5
    assert write_report(run.folder.path).stat().st_size > 10_000
    write_embeddings(run, source, tmp_path / "e.npz")
    with np.load(tmp_path / "e.npz") as e:
        own = {"log_density"} if source.stem == "halves" else set()
        assert set(e.files) == {"name", "label", "z", "mean", "variance"} | own


def build(shape=(1, 8, 8), target_shape=None, **settings):
    n = shape[0] + (0 if target_shape is None else target_shape[0])
    return build_method(ModelConfig(**settings), shape, target_shape, torch.arange(n) / 10, torch.arange(n) + 1.0)


def test_a_named_second_encoder_makes_two_for_views_of_one_shape(tmp_path):
    run = vergence.train("digits", out=tmp_path / "run", target_encoder="mlp", **GAUSSIAN)
    assert not torch.equal(run.embed(images(), projected=True), run.embed(images(), side="target", projected=True))
    again = vergence.load(tmp_path / "run", device="cpu")
    for side in ("context", "target"):
        assert torch.equal(run.embed(images(), side=side, projected=True), again.embed(images(), side=side, projected=True))
    assert torch.equal(run.method.encoder[0].mean, run.method.target_encoder[0].mean)  # one kind of items, one statistics
    assert torch.equal(run.anomaly_score(images()), again.anomaly_score(images()))


def test_the_second_encoder_stands_on_its_own_statistics():
    method = build((1, 8, 8), (3,), objective="gje")
    assert method.encoder[0].mean.tolist() == [0.0]
    assert torch.equal(method.target_encoder[0].mean, torch.tensor([1, 2, 3]) / 10)
    assert torch.equal(method.target_encoder[0].std, torch.tensor([2.0, 3.0, 4.0]))


def test_an_encoder_that_cannot_take_the_target_gives_way_unless_it_was_named():
    assert build((1, 8, 8), (5,), encoder="small", objective="gje").target_encoder(torch.zeros(2, 5)).shape == (2, 256)
    refuses("use `encoder='mlp'`", build, (1, 8, 8), (5,), encoder="mlp", target_encoder="small")
    refuses(r"expected an encoder among .*, found 'smal'", build, target_encoder="smal")


class Networked(Objective):
    """An objective with networks for one or both directions, and a teacher of its own."""

    teacher = 0.9

    def __init__(self, dim, *, tied=True):
        super().__init__()
        self.tied = tied

    def forward(self, za, zb):
        return {"distance": (za - zb).square().mean()}


@pytest.mark.parametrize(
    ("settings", "tied"),
    [({}, True), ({"target_encoder": "mlp"}, False), ({"target_encoder": "mlp", "options": {"tied": True}}, True)],
)
def test_two_encoders_have_two_networks_by_default(monkeypatch, settings, tied):
    monkeypatch.setattr(building.objectives, "get", lambda name: Networked)
    assert build(**settings).objective.tied is tied


@pytest.mark.parametrize(("given", "expected"), [(None, 0.9), (0.5, 0.5), (0, 0), (False, None)])
def test_the_teacher_is_the_runs_or_the_objectives(monkeypatch, given, expected):
    monkeypatch.setattr(building.objectives, "get", lambda name: Networked)
    method = build(teacher=given)
    assert method.momentum == expected and (method.teacher is None) == (expected is None)
    assert build(teacher=given, target_encoder="mlp").momentum == expected


def test_a_teacher_switched_off_is_written_down_and_true_is_refused():
    config = RunConfig(data=DataConfig(source="digits"), model=ModelConfig(teacher=False))
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))).model.teacher is False
    refuses("found True", ModelConfig, teacher=True)


def test_conditional_is_the_objectives_on_projected_embeddings(run):
    expected = run.method.objective.conditional(run.embed(images(), projected=True))
    found = run.conditional(images())
    assert found.batch_shape == (5,) and found.event_shape == (8,)
    assert torch.equal(found.mean, expected.mean) and torch.allclose(found.variance, expected.variance)
    z = run.embed(images(), side="target", projected=True)
    assert torch.allclose(found.log_prob(z), run.method.objective.log_prob(z, run.embed(images(), projected=True)))


def test_samples_are_repeatable_and_leave_the_global_seed_alone(run):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    (za, zb), again, other = run.sample(1000, seed=3), run.sample(1000, seed=3), run.sample(1000, seed=4)
    assert torch.equal(torch.rand(3), expected)
    assert za.shape == zb.shape == (1000, 8)
    assert torch.equal(za, again[0]) and torch.equal(zb, again[1]) and not torch.equal(za, other[0])
    marginal = run.method.objective.marginal()
    z = (za.mean(0) - marginal.mean) / (marginal.variance / 1000).sqrt()
    assert z.abs().max() < 5
    refuses("at least 1", run.sample, 0)


def test_mixtures_of_many_components_are_taken_in_parts(tmp_path, monkeypatch):
    run = vergence.train("digits", out=tmp_path / "run", **GAUSSIAN)
    conditional, _, _ = mixture(K=7, D=8)
    monkeypatch.setattr(run.method.objective, "conditional", conditional)
    sizes, expected = [], (run.posterior(images(9)).mean, run.anomaly_score(images(9)))
    monkeypatch.setattr(run.method.objective, "conditional", lambda z: sizes.append(len(z)) or conditional(z))
    monkeypatch.setattr(rows, "MAX_NUMBERS", 4 * 7 * 8)
    write_embeddings(run, images(9), tmp_path / "e.npz")
    assert max(sizes) == 4 and sizes.count(4) == 4  # beliefs and log-densities of 4, 4 and 1
    with np.load(tmp_path / "e.npz") as e:
        assert np.allclose(e["mean"], expected[0], atol=1e-5)
    assert torch.allclose(run.anomaly_score(images(9)), expected[1], rtol=1e-4)


def test_an_objective_without_a_conditional_says_so(table):
    x = torch.zeros(5, 5)
    for call in (lambda: table.conditional(x), lambda: table.sample(3), lambda: table.retrieve(x, x, 1)):
        refuses("'vje', which has none", call)


def test_banks_of_every_form_are_one_thing(pairs):
    run, source = pairs
    with np.load(source) as arrays:
        context, target = arrays["context"][:6], arrays["target"]
    found = run.retrieve(context, target, 4)
    embedded = {"bank_embeddings": run.embed(source, side="target", projected=True)}
    for bank in ({"bank": source}, {"bank": run.items(source, side="target")}, {"bank": torch.from_numpy(target)}, embedded):
        again = run.retrieve(context, n=4, **bank)
        assert torch.equal(found.ranked, again.ranked)
    expected = run.conditional(context).log_prob(run.embed(target, side="target", projected=True)[:, None]).T
    order = expected.argsort(dim=1, descending=True)[:, :4]
    assert torch.equal(found.ranked, order)
    assert torch.allclose(found.ranked_log_prob, expected.gather(1, order), rtol=1e-4, atol=1e-4)


def test_what_cannot_be_retrieved(run):
    refuses("bank", run.retrieve, images(), bank_embeddings=torch.zeros(3, 5))
    refuses("n from 1 to the bank's 3 items", run.retrieve, images(), bank_embeddings=torch.zeros(3, 8), n=4)
    refuses("found neither", run.retrieve, images(), n=1)
    refuses("found both", run.retrieve, images(), images(), bank_embeddings=torch.zeros(3, 8))
    refuses("pass raw items as bank", run.retrieve, images(), bank_embeddings=images())


@pytest.mark.slow
def test_trained_encoders_find_the_other_half_of_what_is_held_out(tmp_path):
    """Both parts are different views of one hidden vector: of 100 held-out targets, chance finds the right one in 1 %."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(2000, 4)).astype(np.float32)
    noise = 0.05 * rng.normal(size=(2000, 9)).astype(np.float32)
    context, target = np.tanh(hidden @ rng.normal(size=(4, 12))), hidden @ rng.normal(size=(4, 9)) + noise
    np.savez(tmp_path / "p.npz", context=context[:1900].astype(np.float32), target=target[:1900].astype(np.float32))
    settings = {**GAUSSIAN, "projector": (4,), "limit": None, "epochs": 12, "optimizer": "adamw", "lr": 2e-3}
    run = vergence.train(str(tmp_path / "p.npz"), out=tmp_path / "run", encoder="mlp", **settings)
    found = run.retrieve(context[1900:].astype(np.float32), target[1900:].astype(np.float32), 5)
    right = found.ranked == torch.arange(100)[:, None]
    assert right[:, 0].float().mean() > 0.5 and right.any(1).float().mean() > 0.9


def mixture(B=7, K=5, D=3):
    """A conditional of K components, whose weights, means and variances depend on the context."""
    torch.manual_seed(2)
    W, V = torch.randn(D, K), torch.randn(K, D, D)

    def conditional(z: Tensor) -> MixtureOfGaussians:
        spread = Diagonal((0.1 + z.square())[:, None].expand(-1, K, -1))
        return MixtureOfGaussians(z @ W, torch.einsum("kde,be->bkd", V, z), spread)

    return conditional, torch.randn(B, D), torch.randn(200, D)


@pytest.mark.parametrize("numbers", [1 << 24, 200, 1])
def test_retrieval_is_brute_force_in_blocks_of_any_size(numbers):
    conditional, za, bank = mixture()
    found = retrieve(conditional, za, bank, n=6, numbers=numbers)
    for b, z in enumerate(za):
        whole = conditional(z[None]).log_prob(bank).topk(6)
        assert found.ranked[b].tolist() == whole.indices.tolist()
        assert torch.allclose(found.ranked_log_prob[b], whole.values, rtol=1e-4, atol=1e-4)


def test_memory_stays_bounded(monkeypatch):
    """No tensor of contexts by bank by features: 64 x 4,000 x 8 numbers would be two million."""
    sizes = []
    original = JointGaussian.log_prob
    monkeypatch.setattr(JointGaussian, "log_prob", lambda self, z: sizes.append(original(self, z).numel()) or original(self, z))
    gje = GJE(8).eval()
    gje.update(torch.randn(64, 8), torch.randn(64, 8))
    retrieve(gje.conditional, torch.randn(64, 8), torch.randn(4000, 8), n=3, numbers=10_000)
    assert max(sizes) * 8 <= 10_000


def test_unreadable_items_of_a_bank_keep_their_numbers(run, tmp_path):
    for i, x in enumerate(images(4)):
        Image.fromarray(x[0].numpy()).save(tmp_path / f"{i}.png")
    (tmp_path / "0.png").write_text("no image")
    found = run.retrieve(images(4), tmp_path, 3)
    assert set(found.ranked.flatten().tolist()) == {1, 2, 3}


def test_components_that_all_contexts_share_are_retrieved_with_as_the_others():
    g = torch.Generator().manual_seed(0)
    loc, d, bank = torch.randn(6, 3, generator=g), torch.full((3,), 0.5), torch.randn(40, 3, generator=g)

    def shared(z):
        return MixtureOfGaussians(-(z[:, None] - loc).square().sum(-1), loc, Diagonal(d))

    def copies(z):
        found = shared(z)
        return MixtureOfGaussians(found.mixture_distribution.logits, loc.expand(len(z), 6, 3).clone(), Diagonal(d))

    za = torch.randn(9, 3, generator=g)
    one, two = (retrieve(density, za, bank, n=4) for density in (shared, copies))
    assert torch.equal(one.ranked, two.ranked)
    torch.testing.assert_close(one.ranked_log_prob, two.ranked_log_prob, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dual", [False, True])
def test_targets_are_embedded_by_the_teacher_that_the_density_knows(tmp_path, dual):
    second = {"target_encoder": "small"} if dual else {}
    settings = {"objective": "jepa", "teacher": 0.5, "projector": (8,), **second, **QUICK}
    run = vergence.train(str(write_pairs(tmp_path, "halves")), out=tmp_path / "run", **settings)
    x = torch.from_numpy(np.load(tmp_path / "halves.npz")["target"][:20])[:, None]
    teacher = run.method.target_teacher if dual else run.method.teacher
    student = run.method.branch("target").eval()
    with torch.no_grad():
        expected, other = teacher.eval()(x), student(x)
    torch.testing.assert_close(run.embed(x, side="target", projected=True), expected)
    assert (expected - other).abs().max() > 1e-3
    torch.testing.assert_close(run.embed(x, projected=True), run.method.branch("context").eval()(x).detach())
    found = run.retrieve(x[:3], x, n=2).ranked
    assert torch.equal(found, run.retrieve(x[:3], bank_embeddings=run.embed(x, side="target", projected=True), n=2).ranked)
