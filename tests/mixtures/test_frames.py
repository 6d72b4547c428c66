"""Tables of pandas, polars and Arrow in, the same out; weights; scikit-learn's tools; plots."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

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
    with pytest.raises(ValueError, match="column color"):
        model.predict(data[["size", "when"]])
    for other in (model, mixtures.get("kernel")().fit(data[["size", "color"]], data["drag"])):
        with pytest.warns(UserWarning, match="color is 'green' in 60 rows"):
            unknown = other.predict(data.assign(color="green"))
        np.testing.assert_allclose(unknown.mean(), data["drag"].mean(), atol=0.3)
    with pytest.raises(ValueError, match="found word"):
        ConditionalGaussian().fit(data.assign(word=[f"w{i % 40}" for i in range(60)])[["word"]], data["drag"])


def test_polars_and_arrow_in_and_out():
    data = frame()
    table = pl.from_pandas(data)
    model = ConditionalGaussian().fit(table[["size", "color"]], table["drag"].to_numpy())
    assert isinstance(model.predict(table), pl.Series)
    arrow = pa.Table.from_pandas(data)
    assert isinstance(model.predict(arrow), pa.Table)
    np.testing.assert_allclose(model.predict(table).to_numpy(), model.predict(data).to_numpy())


def test_a_choice_by_names():
    data = frame()
    found = mixtures.choose(data[["size", "color"]], data["drag"], seconds=0.0)
    assert found.model.predict(data[["color", "size"]]).name == "drag"
    assert mixtures.importance(found.model, data[["size", "color"]], data["drag"]).columns["column"] == ["size", "color"]


@pytest.mark.parametrize("make", [ConditionalGaussian, lambda: ConditionalMixture(2, random_state=0)])
def test_weights_are_repetitions(make):
    data = frame()
    x, y, w = data[["size"]].to_numpy(), data["drag"].to_numpy(), np.random.default_rng(0).integers(1, 4, 60)
    weighted, repeated = make().fit(x, y, sample_weight=w), make().fit(np.repeat(x, w, 0), np.repeat(y, w))
    np.testing.assert_allclose(weighted.score_samples(x, y), repeated.score_samples(x, y), atol=1e-6)
    none = make().fit(x, y, sample_weight=(np.arange(60) < 40) * 1.0)
    np.testing.assert_allclose(none.score_samples(x, y), make().fit(x[:40], y[:40]).score_samples(x, y), atol=1e-6)
    with pytest.raises(ValueError, match="weights of at least 0"):
        make().fit(x, y, sample_weight=-w)


def test_a_network_with_weights():
    r = np.random.default_rng(0)
    x, side = r.uniform(-1, 1, (400, 1)), r.choice([-1.0, 1.0], 400)
    t = side * 2 + 0.1 * r.normal(size=400)
    model = mixtures.get("mdn")(n_components=2, steps=300, n_init=1, random_state=0)
    share = (model.fit(x, t, sample_weight=np.where(side > 0, 3.0, 1.0)).sample([[0.0]], 2000, random_state=0) > 0).mean()
    assert share == pytest.approx(0.75, abs=0.06)


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
