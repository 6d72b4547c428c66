"""What densities refuse beyond the arguments of `tests/fuzz/functions.py`."""

import pytest
import torch

from vergence.densities.gaussian import JointGaussian
from vergence.densities.retrieval import retrieve

EYE = torch.eye(3)
REFUSED = {
    "context of all features": lambda: JointGaussian(torch.zeros(3), EYE, context=3),
    "conditional without context": lambda: JointGaussian(torch.zeros(3), EYE).conditional(torch.zeros(1)),
    "context of another size": lambda: JointGaussian(torch.zeros(3), EYE, context=1).conditional(torch.zeros(2)),
    "unknown block": lambda: JointGaussian(torch.zeros(3), EYE, context=1).marginal("left"),
    "not definite": lambda: JointGaussian(torch.zeros(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]])),
    "not symmetric": lambda: JointGaussian(torch.zeros(3), EYE + EYE.roll(1, 0).triu() / 2),
    "contexts of another width than the bank": lambda: retrieve(None, torch.zeros(2, 3), torch.zeros(4, 2), n=1),
    "more items than the bank": lambda: retrieve(None, torch.zeros(2, 3), torch.zeros(4, 3), n=5),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(case):
    with pytest.raises(ValueError, match="expected"):
        REFUSED[case]()
