"""Work that dies in a method of a class, and goes on."""

import pytest
import torch
from safetensors.torch import load_file

import vergence


def dies_at(n, kind, name, monkeypatch, error=KeyboardInterrupt):
    """Lets the n-th call of a method raise an error, and returns the list that all calls' arguments are added to."""
    calls, method = [], getattr(kind, name)

    def dies(self, *args, **settings):
        calls.append(args)
        if len(calls) == n:
            raise error
        return method(self, *args, **settings)

    monkeypatch.setattr(kind, name, dies)
    return calls


def resumed_with_the_same_bits(kind, run, folder, monkeypatch):
    """Trains whole and with a death after five steps; asserts that both end alike, and returns the state at the death."""
    vergence.train("digits", out=folder / "whole", **run)
    dies_at(6, kind, "update", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        vergence.train("digits", out=folder / "dead", **run)
    state = torch.load(folder / "dead" / "checkpoints" / "last.pt", weights_only=True)
    assert state["step"] == 5
    vergence.train(out=folder / "dead", resume=True)
    whole, dead = (load_file(folder / name / "model.safetensors") for name in ("whole", "dead"))
    assert whole.keys() == dead.keys() and all(torch.equal(whole[k], dead[k]) for k in whole)
    return state
