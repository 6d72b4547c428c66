"""A reason names the level, direction and measurement in which an item was made unusual."""

import numpy as np
import pytest
import torch

from vergence.detection import Reason, Reasons


def typical(n=500):
    r = torch.Generator().manual_seed(0)
    return {
        "pixels": torch.randn(n, 4, generator=r, dtype=torch.float32) * torch.tensor([4.0, 3.0, 2.0, 1.0]),
        "z": torch.randn(n, 3, generator=r, dtype=torch.float32),
    }


def test_a_reason_names_what_was_planted():
    x = typical()
    light, sharp = np.linspace(0.2, 0.8, 500), np.linspace(1, 2, 500)
    names = [f"{i}.png" for i in range(500)]
    reasons = Reasons(x, {"brightness": light, "sharpness": sharp}, names)
    odd = {"pixels": torch.tensor([[0.0, 0, -16, 0], [0, 0, 0, 0]]), "z": torch.tensor([[0.0, 0, 0], [30, 0, 0]])}
    p = {"pixels": [0.001, 0.5], "z": [0.4, 0.002]}
    first, second = reasons.explain(odd, p, {"brightness": [0.1, 0.5], "sharpness": [1.5, 1.5]}, {"dark": [True, False]})
    assert isinstance(first, Reason) and first.level == "pixels" and first.directions == (2,) and first.share > 0.95
    assert abs(first.deviations[0]) == pytest.approx(8, rel=0.15) and first.measurements == ("low brightness",)
    assert first.flags == ("dark",) and second.flags == () and second.level == "z" and second.measurements == ()
    distance = (x["pixels"] - odd["pixels"][0]).square().sum(1)
    assert list(first.nearest) == distance.argsort()[:3].tolist()
    assert f"dark, low brightness; nearest typical items: {names[first.nearest[0]]}" in str(first)
    assert str(first).startswith("unusual at level 'pixels' (p = 0.001): ")


def test_two_directions_and_constant_features():
    x = typical()["pixels"]
    x[:, 3] = 0
    (reason,) = Reasons({"a": x}).explain({"a": torch.tensor([[40.0, 30.0, 0.0, 0.0]])}, {"a": torch.tensor([0.01])})
    assert set(reason.directions) == {0, 1} and reason.share > 0.99 and "directions" in str(reason)
    (reason,) = Reasons({"a": x}).explain({"a": x.mean(0, keepdim=True)}, {"a": [1.0]})
    assert len(reason.directions) == 1 and np.isfinite(reason.deviations).all()


def test_errors():
    x = typical(50)
    with pytest.raises(ValueError, match="expected the same typical items at every level, found a 50, b 3"):
        Reasons({"a": x["z"], "b": x["z"][:3]})
    with pytest.raises(ValueError, match="expected a name for each of the 50 typical items, found 1"):
        Reasons(x, names=["a"])
    with pytest.raises(ValueError, match="expected features of every level with p-values, found none of w"):
        Reasons(x).explain({"z": x["z"]}, {"w": [0.1]})
    with pytest.raises(ValueError, match="expected as many p-values as items"):
        Reasons(x).explain({"z": x["z"]}, {"z": [0.1]})
