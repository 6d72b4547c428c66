"""A user's program, for `mypy --strict` (`make lint`): what is returned has a type, and a wrong argument is an error."""

import numpy as np
import torch
from typing_extensions import assert_type

import vergence
from vergence import decide, mixtures


def program(x: "np.ndarray[tuple[int, int], np.dtype[np.float32]]") -> None:
    run = vergence.train(x, epochs=1, device="cpu")
    assert_type(run.embed(x[:3]), torch.Tensor)
    found = vergence.check("photos", against="reference", fdr=0.1)
    assert_type(vergence.calibrate(x[:, 0], x[:, 1], fdr=0.1), decide.Decisions)
    assert_type(decide.select(decide.p_values(x[:, 0], torch.ones(3))), torch.Tensor)
    assert_type(vergence.score(x, run, "scores.csv"), decide.Decisions)
    assert_type(vergence.match(x, x + 1, x[:3], x[3:]), decide.Matches)
    assert_type(decide.GaussianDetector().fit(x), decide.GaussianDetector)
    assert_type(vergence.mixtures.choose(x[:, :2], x[:, 2:]), mixtures.Selection)
    assert_type(mixtures.BayesianLine().fit(x, x), mixtures.BayesianLine)
    print(vergence.advise(x), vergence.evaluate(run), vergence.compare([run]))
    print(found.nope)  # type: ignore[attr-defined]
    vergence.calibrate(x, x, fdrr=0.1)  # type: ignore[call-arg]
