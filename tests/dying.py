"""A training that dies in an objective's update, and goes on."""

import pytest
import torch
from safetensors.torch import load_file

import vergence


def resumed_with_the_same_bits(kind, run, folder, monkeypatch):
    """Trains whole and with a death after five steps; asserts that both end alike, and returns the state at the death."""
    vergence.train("digits", out=folder / "whole", **run)
    calls, update = [], kind.update

    def dies(self, za, zb):
        calls.append(len(za))
        if len(calls) == 6:
            raise KeyboardInterrupt
        update(self, za, zb)

    monkeypatch.setattr(kind, "update", dies)
    with pytest.raises(KeyboardInterrupt):
        vergence.train("digits", out=folder / "dead", **run)
    monkeypatch.setattr(kind, "update", update)
    state = torch.load(folder / "dead" / "checkpoints" / "last.pt", weights_only=True)
    assert state["step"] == 5
    vergence.train(out=folder / "dead", resume=True)
    whole, dead = (load_file(folder / name / "model.safetensors") for name in ("whole", "dead"))
    assert whole.keys() == dead.keys() and all(torch.equal(whole[k], dead[k]) for k in whole)
    return state
