"""Tables of pandas, polars and Arrow in, the same out; scikit-learn's tools."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.refusals import refuses

from vergence import mixtures
from vergence.mixtures import ConditionalGaussian, ConditionalMixture

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")


def frame(n=60, seed=0):
    r = np.random.default_rng(seed)
    color, size = r.choice(["red", "blue"], n), r.normal(size=n)
    found = pd.DataFrame({"size": size, "color": color, "when": pd.date_range("2024-01-01", periods=n)}, index=np.arange(n) + 100)
    found["drag"] = 2 * size + (color == "red") + 0.1 * r.normal(size=n)
    return found


def test_pandas_in_and_out():
    data = frame()
    model = ConditionalGaussian().fit(data[["size", "color", "when"]], data["drag"])
    week = ["when:week_sine", "when:week_cosine"]
    assert model.columns_ == [["size", "color=blue", "color=red", "when", *week], ["drag"]]
    found = model.predict(data[["when", "color", "size"]])  # in any order
    assert isinstance(found, pd.Series) and found.name == "drag" and found.index.equals(data.index)
    assert np.corrcoef(found, data["drag"])[0, 1] > 0.99
    _, std = model.predict(data[["size", "color", "when"]], return_std=True)
    assert isinstance(std, pd.Series) and (std > 0).all()
    assert model.quantile(data, 0.9).gt(model.quantile(data, 0.1)).all()
    both = ConditionalGaussian().fit(data[["color"]], data[["size", "drag"]])
    assert list(both.predict(data).columns) == ["size", "drag"] and isinstance(both.predict(data), pd.DataFrame)
    assert both.given({"drag": 2.0, "size": None}).batch_shape == (1,)
    refuses("column color", model.predict, data[["size", "when"]])
    for other in (model, mixtures.get("kernel")().fit(data[["size", "color"]], data["drag"])):
        with pytest.warns(UserWarning, match="color is 'green' in 60 rows"):
            unknown = other.predict(data.assign(color="green"))
        np.testing.assert_allclose(unknown.mean(), data["drag"].mean(), atol=0.3)
    refuses("found word", ConditionalGaussian().fit, data.assign(word=[f"w{i % 40}" for i in range(60)])[["word"]], data["drag"])


def test_polars_and_arrow_in_and_out():
    data = frame()
    table = pl.from_pandas(data)
    model = ConditionalGaussian().fit(table[["size", "color"]], table["drag"].to_numpy())
    assert isinstance(model.predict(table), pl.Series)
    arrow = pa.Table.from_pandas(data)
    assert isinstance(model.predict(arrow), pa.Table)
    np.testing.assert_allclose(model.predict(table).to_numpy(), model.predict(data).to_numpy())


def test_intervals_and_samples_of_tables_have_names_and_the_index():
    data = frame()
    for targets in (["drag"], ["size", "drag"]):
        model = ConditionalGaussian(random_state=0).fit(data[["color", "when"]], data[targets])
        ends, drawn, x = model.intervals(data, 0.8), model.sample(data, 3), model._array(data, reset=False)
        assert list(ends.columns) == [f"{t}_{end}" for t in targets for end in ("low", "high")] and ends.index.equals(data.index)
        np.testing.assert_array_equal(ends.to_numpy().reshape(60, -1, 2), model.intervals(x, 0.8))
        assert list(drawn.columns) == ["sample", *targets] and list(drawn.index[:4]) == [100, 100, 100, 101]
        np.testing.assert_array_equal(drawn[targets].to_numpy().reshape(60, 3, -1), model.sample(x, 3))
    table = pl.from_pandas(data)
    assert model.sample(table, 2).columns == ["row", "sample", "size", "drag"]
    assert isinstance(model.intervals(table), pl.DataFrame)
    assert model.intervals(pa.Table.from_pandas(data)).column_names == list(ends.columns)
    named = ConditionalGaussian(random_state=0).fit(data[["size"]], data["drag"].rename("sample"))
    assert list(named.sample(data).columns) == ["vergence_sample", "sample"]


def test_intervals_are_adjusted_by_the_targets_that_are_there():
    data = frame()
    model = ConditionalGaussian().fit(data[["color"]], data[["size", "drag"]])
    seen, gaps = np.random.default_rng(0).uniform(size=(40, 1)), np.full((80, 1), np.nan)
    model.held_out_pit_ = np.c_[np.r_[seen, gaps], np.r_[gaps, seen]]
    ends = model.intervals(data).to_numpy()
    model.held_out_pit_ = np.c_[seen, seen]
    np.testing.assert_array_equal(ends, model.intervals(data).to_numpy())


def test_tables_without_rows_have_answers_without_rows():
    data = frame()
    model = ConditionalGaussian(random_state=0).fit(data[["size", "color"]], data["drag"])
    none = data.head(0)
    assert [len(f(none)) for f in (model.predict, model.mode, model.intervals, model.sample)] == [0] * 4
    assert list(model.intervals(none).columns) == ["drag_low", "drag_high"]
    assert model.score_samples(none, none["drag"]).shape == (0,)
    assert model.predict(np.empty((0, 3))).shape == (0,) and model.sample(np.empty((0, 3)), 2).shape == (0, 2)


def test_any_direction_by_category_by_date_and_of_several_rows():
    data = frame()
    model = ConditionalGaussian().fit(data[["size", "color", "when"]], data["drag"])
    both = model.given({"drag": None, "color": ["red", "blue"], "size": 0.0}).mean[:, 0]
    named = [model.given({"drag": None, "color=red": r, "color=blue": 1 - r, "size": 0.0}).mean.item() for r in (1, 0)]
    assert both.tolist() == pytest.approx(named) and both[0] - both[1] == pytest.approx(1, abs=0.1)
    days = (
        "2024-02-01", pd.Timestamp("2024-02-01"), np.datetime64("2024-02-01"),
        (pd.Timestamp("2024-02-01") - pd.Timestamp(0)).days,
    )  # fmt: skip
    assert len({round(model.given({"drag": None, "when": day}).mean.item(), 9) for day in days}) == 1
    rows = data[["size", "color", "when"]].assign(drag=None)
    np.testing.assert_allclose(model.given(rows).mean[:, 0], model.predict(data), rtol=1e-9)
    gap = model.given({"drag": None, "size": [1.0, None], "color": "red"}).variance[:, 0]
    assert gap[1] > 10 * gap[0], "a gap in a row is integrated over"
    assert model.given({"drag": 1.0, "color": None}).mean.shape == (1, 2), "an indicator of each value"
    for wrong, match in (
        ({"when": "in May"}, "numbers in the column when"),
        ({"color": "green"}, "found 'green'"),
        ({"colour": 1}, "color"),
    ):
        refuses(match, model.given, {"drag": None, **wrong})
    with pytest.raises(ValueError, match="one value or 3 in each column, found 2 in color"):
        model.given({"drag": None, "size": [0, 1, 2], "color": ["red", "blue"]})


def test_a_choice_by_names():
    data = frame()
    found = mixtures.choose(data[["size", "color"]], data["drag"], seconds=0.0)
    assert found.model.predict(data[["color", "size"]]).name == "drag"
    assert mixtures.importance(found.model, data[["size", "color"]], data["drag"]).columns["column"] == ["size", "color"]


def test_scikit_learns_tools():
    data = frame(120)
    x, y = data[["size"]].to_numpy(), data["drag"].to_numpy()
    scores = cross_val_score(make_pipeline(StandardScaler(), ConditionalGaussian()), x, y)
    assert scores.shape == (5,) and np.isfinite(scores).all()
    found = GridSearchCV(ConditionalMixture(random_state=0, n_init=2), {"n_components": [1, 2]}).fit(x, y)
    assert found.best_params_["n_components"] == 2
    regressor = TransformedTargetRegressor(ConditionalGaussian().as_regressor(), func=np.cbrt, inverse_func=lambda v: v**3)
    assert regressor.fit(x, y).predict(x).shape == (120,)
    assert cross_val_score(ConditionalGaussian().as_regressor(), x, y).mean() > 0.9
    wrapped = ConditionalGaussian().as_regressor().fit(data[["size"]], data["drag"])
    assert wrapped.density_.intervals(x).shape == (120, 2)


def test_frames_through_pipelines_and_transformed_targets():
    data = frame(120)
    x, price = data[["size"]], data["drag"].map(np.exp)
    for model in (ConditionalGaussian(), ConditionalGaussian().as_regressor()):
        pipeline = make_pipeline(StandardScaler(), model).fit(x, data["drag"])
        alone = ConditionalGaussian().fit(x.to_numpy(), data["drag"])
        np.testing.assert_allclose(pipeline.predict(x, level=0.8), alone.intervals(x.to_numpy(), 0.8), rtol=1e-9)
    logs = TransformedTargetRegressor(ConditionalGaussian().as_regressor(), func=np.log, inverse_func=np.exp).fit(x, price)
    assert logs.predict(x).shape == (120,), "an array, as of scikit-learn's regressors"
    np.testing.assert_allclose(logs.predict(x, level=0.8), np.exp(alone.intervals(x.to_numpy(), 0.8)), rtol=1e-9)
    assert logs.feature_names_in_.tolist() == ["size"]
    mixed = ConditionalGaussian().fit(data[["size", "color"]], price)
    assert mixed.feature_names_in_.tolist() == ["size", "color=blue", "color=red"]
    assert not hasattr(ConditionalGaussian().fit(x.to_numpy(), price), "feature_names_in_")
