"""``vergence density`` as people meet it: from a file of pairs to files of answers."""

import warnings

import numpy as np
import pytest
from tests.cli.test_cli import call, refused
from tests.factories import rows as table

from vergence import mixtures
from vergence.data.arrays import Pairs
from vergence.decide import q_values
from vergence.tables import models as density

pytestmark = pytest.mark.float32


def two_answers(n=600, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, n)
    return x[:, None], rng.choice([-1.0, 1.0], n) * (1 + x) + 0.05 * rng.normal(size=n)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("density")
    c, t = two_answers()
    np.savez(out / "pairs.npz", context=c, target=t)
    rows = [f"{a},{i},{b}" for i, (a, b) in enumerate(zip(c[:, 0], t, strict=True))]
    (out / "pairs.csv").write_text("speed,number,drag\n" + "\n".join(rows) + "\n")
    model = ["--model", "mixture", "--set", "n_components=2", "--out", out / "m.safetensors"]
    found = call("density", "fit", out / "pairs.npz", *model)
    assert found.returncode == 0, found.stderr
    assert "to 480 rows" in found.stdout and "120 rows held out" in found.stdout and "baseline" in found.stdout
    return out


def asked(contexts):
    return Pairs(contexts, np.zeros((len(contexts), 0)), ([], []))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mixture", "mdn"])
def test_more_components_than_answers_count_as_answers(model, tmp_path):
    c, t = two_answers(800)
    found = mixtures.get(model)(random_state=0, n_components=4).fit(c, t)
    density.predict(found, asked(np.linspace(0, 0.9, 20)[:, None]), tmp_path / "p.csv")
    answers = [float(row["answers"]) for row in table(tmp_path / "p.csv")]
    assert 1.7 < np.median(answers) < 2.7  # two branches of four components


def test_predict_sample_and_score(folder):
    model = mixtures.load(folder / "m.safetensors")
    c, t = two_answers()
    assert call("density", "predict", folder / "m.safetensors", folder / "pairs.npz", "--out", folder / "p.csv").returncode == 0
    rows = table(folder / "p.csv")
    assert list(rows[0]) == ["target_0_mean", "target_0_mode", "target_0_low", "target_0_high", "answers"] and len(rows) == 600
    assert [float(r["target_0_mode"]) for r in rows] == pytest.approx(model.mode(c), rel=1e-5)
    ends = np.array([[float(r["target_0_low"]), float(r["target_0_high"])] for r in rows])
    assert ends == pytest.approx(model.intervals(c, 0.9), rel=1e-5)
    assert np.median([float(r["answers"]) for r in rows]) == pytest.approx(2, abs=0.05)
    found = call("density", "sample", folder / "m.safetensors", folder / "pairs.npz", "--out", folder / "s.npz", "--n", "3")
    assert found.returncode == 0 and found.stdout.startswith("3 samples of target_0 for each of 600 rows.\n")
    with np.load(folder / "s.npz") as s:
        assert s["row"].tolist() == np.repeat(np.arange(600), 3).tolist() and s["sample"][:4].tolist() == [0, 1, 2, 0]
        near = np.abs(np.abs(s["target_0"]) - 1 - c[s["row"], 0])
        assert np.mean(near < 0.3) > 0.95
    found = call("density", "score", folder / "m.safetensors", folder / "pairs.npz", "--out", folder / "c.csv").stdout
    assert found.startswith("warning: 600 rows excluded, since the model was fitted to or calibrated on equal ones; score new")
    new = [np.concatenate(side) for side in zip(two_answers(), two_answers(seed=1), strict=True)]
    rows = density.score_pairs(model, Pairs(*new, (["a"], ["b"])), folder / "c.npz", fdr=0.2)
    assert (rows.total, rows.excluded) == (600, 600)
    with np.load(folder / "c.npz") as s:  # whose columns are read twice
        np.testing.assert_array_equal(s["q_value"][600:], q_values(s["p_value"][600:]))
        assert np.isnan(s["p_value"][:600]).all() and not s["flag"][:600].any()
    found = [float(r["log_density"]) for r in table(folder / "c.csv")]
    assert found == pytest.approx(model.score_samples(c, t), rel=1e-5, abs=1e-5)


def test_answers_have_the_names_of_the_targets(tmp_path):
    r = np.random.default_rng(0)
    x, own = r.normal(size=(120, 1)), np.asarray([f"r{i}" for i in range(120)])
    pairs = Pairs(x, np.c_[x + r.normal(size=(120, 1)), x], (["x"], ["yield", "row"]), {"yield_low": own})
    density.fit_density(pairs, "gaussian", tmp_path / "m.safetensors", settings={}, sample_weight=np.ones(120))
    model, heads = mixtures.load(tmp_path / "m.safetensors"), {}
    for name, write in (("p", density.predict), ("s", density.sample), ("c", density.score_pairs)):
        write(model, pairs, tmp_path / f"{name}.csv")
        heads[name] = list(table(tmp_path / f"{name}.csv")[0])
    four = [[f"{t}_{name}" for name in ("mean", "mode", "low", "high")] for t in ("yield", "row")]
    four[0][2] = "vergence_yield_low"  # since the table has a yield_low of its own
    assert heads["p"] == ["yield_low", *four[0], *four[1]]
    assert heads["s"] == ["yield_low", "vergence_row", "sample", "yield", "row"]
    assert heads["c"] == ["yield_low", "log_density", "yield_pit", "row_pit", "surprise", "p_value", "q_value", "flag"]
    density.score_pairs(model, Pairs(x, pairs.target, pairs.columns, {"flag": own}), tmp_path / "f.csv")
    assert {row["flag"] for row in table(tmp_path / "f.csv")} == {"0"}, "those of the input are left out"


def test_weights_of_rows_reach_the_model(tmp_path):
    r = np.random.default_rng(0)
    x, w = r.normal(size=(60, 1)), r.integers(0, 3, 60)
    pairs = Pairs(x, 2 * x[:, 0] + r.normal(size=60), (["x"], ["y"]))
    density.fit_density(pairs, "gaussian", tmp_path / "m.safetensors", settings={}, holdout=0.0, sample_weight=w)
    repeated = mixtures.get("gaussian")().fit(np.repeat(x, w, 0), np.repeat(pairs.target, w))
    assert mixtures.load(tmp_path / "m.safetensors").predict(x) == pytest.approx(repeated.predict(x))


def test_what_if_and_what_models_warn_of(folder, monkeypatch):
    model = folder / "g.safetensors"
    fit = ["density", "fit", folder / "pairs.csv", "--target", "drag", "--context", "speed,number", "--model", "mdn"]
    assert call(*fit[:-1], "gaussian", "--out", model).returncode == 0
    whole = call("density", "predict", model, "--if", "speed=0.5,number=3").stdout
    assert whole.startswith(f"drag is {mixtures.load(model).predict([[0.5, 3.0]])[0]:.4g} on average, and between ")
    assert whole.endswith("On average 90 % of intervals contain the value, if rows come from the source of the fit.\n")
    assert call("density", "predict", model, "--if", "speed=0.5", "--if", "number=3").stdout == whole
    assert call("density", "predict", model, "--if", "speed=0.5").stdout != whole, "a column without a value is a gap"
    refused("density", "predict", model, "--if", "sped=0.5", words="did you mean 'speed'?")
    refused("density", "predict", model, "--if", "speed", words="--if COLUMN=VALUE")
    refused("density", "predict", model, "--if", "speed=fast", words="numbers in the column speed")
    refused("density", "predict", model, words="a file of contexts, or --if")
    refused("density", "predict", model, folder / "pairs.csv", "--if", "speed=1", words="only --if")
    warn = lambda self, c: warnings.warn(f"{len(c)} rows far", stacklevel=2)  # noqa: E731
    monkeypatch.setattr(mixtures.ConditionalGaussian, "_warn_far", warn)
    found = call("density", "predict", model, folder / "pairs.csv", "--out", folder / "far.csv")
    assert found.returncode == 0 and found.stderr == "warning: 600 rows far\n"


def test_numbers_of_the_fit_are_true(tmp_path):
    c, t = two_answers(2000)
    pairs = Pairs(c, t, (["context_0"], ["target_0"]))
    found = density.fit_density(pairs, "mixture", tmp_path / "m.safetensors", settings={"n_components": 2}, holdout=0.25, seed=3)
    assert (found.train, found.test) == (1500, 500)
    ours, linear, ignoring = found.scores.values()
    truth = -np.log(2) - 0.5 * np.log(2 * np.pi * np.e * 0.05**2)
    assert abs(ours["log_density"] - truth) < 4 * ours["error"] + 0.02
    assert abs(ours["in 50 %"] - 0.5) < 0.1 and abs(ours["in 90 %"] - 0.9) < 0.06
    assert ours["log_density"] > linear["log_density"] + 2
    assert linear["log_density"] == pytest.approx(ignoring["log_density"], abs=0.02)
    model = mixtures.load(tmp_path / "m.safetensors")
    test = np.random.default_rng(3).permutation(2000)[:500]
    assert ours["log_density"] == pytest.approx(model.score(c[test], t[test]))


def test_a_file_that_is_replaced_is_named(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ends = [call("density", "fit", folder / "pairs.npz", "--model", "gaussian").stdout.splitlines()[-2:] for _ in range(2)]
    use = "next: vergence density predict density.safetensors CONTEXTS"
    assert ends == [["wrote density.safetensors", use], ["replaced density.safetensors", use]]


def test_too_few_held_out_pairs_are_named(tmp_path):
    c, t = two_answers(90)
    np.savez(tmp_path / "few.npz", context=c, target=t)
    fit = ["density", "fit", tmp_path / "few.npz", "--model", "gaussian", "--out", tmp_path / "m.safetensors"]
    for share, few in (("0.2", "18 held-out rows"), ("0.015", "1 held-out row")):
        found = call(*fit, "--holdout", share)
        assert (found.returncode, found.stderr) == (0, f"warning: {few}: too few to evaluate the density\n")
        assert "held out" not in found.stdout
    assert call(*fit, "--holdout", "0").stderr == ""
    assert "20 rows held out" in call(*fit, "--holdout", "0.23").stdout


def test_tables_by_the_names_of_their_columns(folder):
    fit = ["density", "fit", folder / "pairs.csv", "--target", "drag", "--context", "speed,number"]
    fit += ["--model", "gaussian", "--out", folder / "g.safetensors"]
    assert call(*fit).returncode == 0
    model = mixtures.load(folder / "g.safetensors")
    assert model.columns_ == [["speed", "number"], ["drag"]]
    lines = (folder / "pairs.csv").read_text().splitlines()
    other = [",".join([c, "x", a, b][i] for i in (0, 2, 3)) for a, b, c in (line.split(",") for line in lines)]
    (folder / "rotated.csv").write_text("\n".join(other) + "\n")  # columns in another order
    swapped = [",".join([b, "0" if i else "rest", c, a]) for i, (a, b, c) in enumerate(line.split(",") for line in lines)]
    (folder / "swapped.csv").write_text("\n".join(swapped) + "\n")  # contexts too, and one column more
    for source in ("pairs.csv", "rotated.csv", "swapped.csv"):
        out = folder / f"{source}.out.csv"
        found = call("density", "score", folder / "g.safetensors", folder / source, "--out", out)
        assert found.returncode == 0 and found.stdout.endswith(f"next: open {out}\n")
        given, scored = (path.read_text().splitlines() for path in (folder / source, out))
        assert all(b.startswith(f"{a},") for a, b in zip(given, scored, strict=True)), "columns of the table stay as they are"
    written = [[row["surprise"] for row in table(folder / f"{name}.csv.out.csv")] for name in ("pairs", "rotated", "swapped")]
    assert written[0] == written[1] == written[2]


def test_wrong_calls_are_one_line(folder, tmp_path):
    out = ["--out", tmp_path / "m.safetensors"]
    fit = ["density", "fit"]
    np.savez(tmp_path / "short.npz", context=np.ones((4, 2)), target=np.ones(3))
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    np.savez(tmp_path / "text.npz", context=np.array(["a", "b"]), target=np.ones(2))
    (tmp_path / "words.csv").write_text("a,b\n1,2\n3,four\n")
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "broken.npz").write_bytes(b"PK nothing")
    refused(*fit, tmp_path / "none.npz", *out, words="found no file")
    refused(*fit, tmp_path / "short.npz", *out, words="(4, 2) and (3,)")
    refused(*fit, tmp_path / "other.npz", *out, words="add context")
    refused(*fit, tmp_path / "text.npz", *out, words="expected numbers in context")
    refused(*fit, tmp_path / "broken.npz", *out, words="cannot be read")
    refused(
        *fit, tmp_path / "words.csv", "--target", "b", *out, words="expected numbers in the target b of words.csv, found text;"
    )
    refused(*fit, tmp_path / "ragged.csv", "--target", "b", *out, words="line 3")
    refused(*fit, tmp_path / "empty.csv", "--target", "b", *out, words="found 0 lines")
    refused(*fit, folder / "pairs.csv", *out, words="--target NAME")
    refused(*fit, folder / "pairs.csv", "--target", "drug", *out, words="did you mean 'drag'?")
    refused(*fit, folder / "pairs.npz", "--target", "drag", *out, words="a table only")
    mixture = [*fit, folder / "pairs.npz", *out, "--model", "mixture", "--set"]
    refused(*mixture, "n_component=2", words="did you mean 'n_components'?")
    refused(*mixture, "n_components=9999", words="9999")
    refused(*fit, folder / "pairs.npz", "--holdout", "1", *out, words="holdout")
    refused(*fit, folder / "pairs.npz", "--out", tmp_path / "m.npz", words=".safetensors")
    refused(*fit, folder / "pairs.npz", "--out", tmp_path / "no" / "m.safetensors", words="folder")
    use = [folder / "m.safetensors", folder / "pairs.npz", "--out", tmp_path / "o.csv"]
    refused("density", "predict", tmp_path / "none", *use[1:], words="found no file")
    refused("density", "predict", *use, "--level", "2", words="--level in (0, 1), found 2.0; for 2 % write 0.02")
    refused("density", "predict", folder / "pairs.csv", *use[1:], words="damaged or of another kind; check the path")
    refused("density", "sample", *use, "--n", "0", words="--n of at least 1")
    np.savez(tmp_path / "wide.npz", context=np.ones((3, 4)), target=np.ones(3))
    refused("density", "score", use[0], tmp_path / "wide.npz", *use[2:], words="4 features")
    refused("density", "predict", use[0], tmp_path / "wide.npz", *use[2:], words="of 1 features in wide.npz, found 4")
    refused(*fit, folder / "pairs.npz", "--model", "gaussiann", *out, words="among gaussian, ")
    assert "conditional_" not in refused(*fit, folder / "pairs.npz", "--model", "foo", *out, words="found 'foo'")
    with pytest.raises(ValueError, match="expected 1 context feature"):
        density.predict(mixtures.load(folder / "m.safetensors"), asked(np.ones((3, 4))), tmp_path / "o.csv")
    np.savez(tmp_path / "one.npz", context=np.ones((1, 4)), target=np.ones(1))
    refused(*fit, tmp_path / "one.npz", *out, words="at least 10 rows to compare models on, found 1; name one, like 'line'")
    assert not (tmp_path / "o.csv").exists() and not (tmp_path / "m.safetensors").exists()


def test_equal_pairs_are_held_out_together(tmp_path):
    r = np.random.default_rng(0)
    i = np.repeat(np.arange(100), 10)
    c, t = r.normal(size=(100, 1))[i], r.normal(size=100)[i]
    pairs = Pairs(c, t, (["context_0"], ["target_0"]))
    test, train = density._split(pairs, r.permutation(1000), 0.2)
    assert sorted([*test, *train]) == list(range(1000)) and len(test) == 200
    assert not set(i[test]) & set(i[train])
    counts = Pairs(r.integers(2, size=(1000, 1)), r.poisson(1.0, 1000), (["context_0"], ["target_0"]))
    test, train = density._split(counts, r.permutation(1000), 0.2)
    assert len(test) == 200 and {*counts.target[test]} & {*counts.target[train]}, "rows that are equal by chance are split"
    apart = Pairs(np.arange(50.0)[:, None], np.zeros(50), (["context_0"], ["target_0"]))
    order = r.permutation(50)
    assert np.array_equal(density._split(apart, order, 0.2)[0], order[:10]), "pairs that differ are split as they come"


def test_the_error_is_that_of_the_difference(tmp_path):
    r = np.random.default_rng(0)
    x = r.normal(size=(400, 1))
    pairs = Pairs(x, x[:, 0] + r.normal(size=400), (["context_0"], ["target_0"]))
    found = density.fit_density(pairs, "gaussian", tmp_path / "m.safetensors", settings={})
    assert found.ahead["linear Gaussian"] == (0.0, 0.0), "the baseline itself"
    lead, error = found.ahead["no context"]
    own, ignoring = (found.scores[name]["log_density"] for name in ("model", "no context"))
    assert lead == pytest.approx(own - ignoring) and 0 < error < lead / 4
    assert found.few_values == []


def test_targets_of_few_values_are_named(tmp_path):
    r = np.random.default_rng(0)
    target = np.c_[r.integers(3, size=200), r.normal(size=200), np.full(200, 2.0)]
    pairs = Pairs(r.normal(size=(200, 1)), target, (["context_0"], ["kind", "size", "same"]))
    assert density._few_values(pairs) == ["kind"]


def test_csv_files_tell_numbers_far_from_zero_apart(tmp_path):
    r = np.random.default_rng(0)
    x = r.normal(size=(200, 1))
    pairs = Pairs(x, 1.7e9 + 30 * x[:, 0] + r.normal(size=200), (["context_0"], ["target_0"]))
    density.fit_density(pairs, "gaussian", tmp_path / "m.safetensors", settings={})
    model = mixtures.load(tmp_path / "m.safetensors")
    density.predict(model, asked(x), tmp_path / "p.csv")
    np.testing.assert_array_equal([float(row["target_0_mean"]) for row in table(tmp_path / "p.csv")], model.predict(x))


@pytest.mark.slow
def test_auto_chooses_prints_one_table_and_one_sentence_and_is_read_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    r = np.random.default_rng(0)
    subject = np.repeat(np.arange(30), 6)
    dose = r.normal(size=180)
    rows = np.column_stack([subject, np.arange(180) + 0.0, dose, 2 * dose + 0.3 * r.normal(size=180)])
    np.savetxt("table.csv", rows, delimiter=",", header="subject,day,dose,effect", comments="")
    fit = ["density", "fit", "table.csv", "--target", "effect"]
    found = call(*fit, "--groups", "subject", "--context", "day,dose", "--out", "m.safetensors")
    assert found.returncode == 0 and found.stdout.startswith("Chosen: line (the")
    assert "kernel" in found.stdout and "next: " in found.stdout
    model = mixtures.load("m.safetensors")
    assert model.columns_ == [["day", "dose"], ["effect"]]
    assert model.predict([[10.0, 1.0]])[0] == pytest.approx(2, abs=0.2)
    assert call("density", "predict", "m.safetensors", "table.csv").returncode == 0
    assert (tmp_path / "predictions-table.csv").is_file()
    assert call(*fit, "--ordered", "day", "--seconds", "1", "--out", "n.safetensors").returncode == 0
    refused(*fit, "--set", "steps=3", words="--set with --model NAME")
    refused(*fit, "--groups", "nobody", words="table.csv has no column 'nobody'; it has subject, day, dose, effect")
    refused(*fit, "--model", "mdn", "--groups", "subject", words="groups or order with the model auto")


def test_tables_without_rows_are_answered_and_names_stay(folder, tmp_path):
    rows = "".join(f"{i:05d},{i / 60},{i % 7}.5\n" for i in range(60))
    (tmp_path / "t.csv").write_text("id,speed,drag\n" + rows)
    (tmp_path / "none.csv").write_text("id,speed,drag\n")
    model = tmp_path / "m.safetensors"
    assert call("density", "fit", tmp_path / "t.csv", "--target", "drag", "--model", "gaussian", "--out", model).returncode == 0
    for verb in ("score", "predict", "sample"):
        found = call("density", verb, model, tmp_path / "none.csv", "--out", tmp_path / f"{verb}.csv")
        assert found.returncode == 0 and "wrote 0 rows" in found.stdout, found.stderr
        head = (tmp_path / f"{verb}.csv").read_text().split()
        assert len(head) == 1 and head[0].startswith("id,"), head
        assert verb != "score" or "0 rows: nothing to decide" in found.stdout
    np.savez(tmp_path / "none.npz", context=np.zeros((0, 1)), target=np.zeros(0))
    found = call("density", "score", folder / "m.safetensors", tmp_path / "none.npz", "--out", tmp_path / "n.csv")
    assert found.returncode == 0 and "0 rows: nothing to decide" in found.stdout, found.stderr
    assert call("density", "predict", model, tmp_path / "t.csv", "--out", tmp_path / "p.csv").returncode == 0
    assert [row["id"] for row in table(tmp_path / "p.csv")] == [f"{i:05d}" for i in range(60)]
    refused("density", "predict", model, tmp_path / "t.csv", "--out", tmp_path / "t.csv", words="apart from what is read")
