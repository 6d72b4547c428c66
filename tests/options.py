"""Keyword options of the classes of a register, and whether two traces of what a class computes differ."""

import inspect

import torch


def of_register(register):
    """Returns (name, option) of every keyword option of the classes of a register, as of the objectives or the methods."""
    signatures = {name: inspect.signature(register.get(name)).parameters for name in register.names()}
    return [(name, key) for name, found in signatures.items() for key, p in found.items() if p.kind is p.KEYWORD_ONLY]


def differ(one, another):
    """Returns whether two lists of tensors differ in number, shapes or values."""
    shapes = [[value.shape for value in trace] for trace in (one, another)]
    return shapes[0] != shapes[1] or any(not torch.equal(a, b) for a, b in zip(one, another, strict=True))
