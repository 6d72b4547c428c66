"""Images of conditional densities: what is drawn is what the model says."""

import pytest
from tests.mixtures.test_frames import frame

from vergence import mixtures
from vergence.mixtures import ConditionalGaussian, ConditionalMixture


def test_images(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    data = frame()
    model = ConditionalGaussian().fit(data[["size"]], data["drag"])
    ax = mixtures.plot(model, data[["size"]], data["drag"])
    low, high = model.intervals(data[["size"]], 0.95).to_numpy().T
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(low.min()) and band[:, 1].max() == pytest.approx(high.max())
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("size", "drag")
    wide = ConditionalMixture(2, random_state=0).fit(data[["size", "color"]], data[["drag"]].assign(twice=2 * data["drag"]))
    ax = mixtures.plot(wide, data[["size", "color"]].iloc[:4], feature=0)
    ridge = ax.lines[0].get_xydata()
    given = wide.predict(data[["size", "color"]].iloc[:1])["drag"].iloc[0]
    assert ridge[ridge[:, 1].argmax(), 0] == pytest.approx(given, abs=0.2) and len(ax.lines) == 4
    with pytest.raises(ValueError, match="at most 30 contexts"):
        mixtures.plot(wide, data[["size", "color"]])
    with pytest.raises(ValueError, match="feature"):
        mixtures.plot(wide, data[["size", "color"]].iloc[:4], feature=2)
    plt.close("all")
