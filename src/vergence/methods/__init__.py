"""Methods, which turn a batch into named loss terms: objectives on pairs (`paired`), and a file for each method on images.

`core.Method` is the contract. The folder lists the methods on images.
"""

import importlib
import inspect
import pkgutil

from vergence.methods.core import ImageMethod, Method
from vergence.utils.names import unknown

__all__ = ["ImageMethod", "Method", "get", "names"]

HINT = "objectives on pairs are chosen by --objective"  # of an unknown name
OTHERS = ("core", "paired", "parts")  # of this folder


def names() -> list[str]:
    """Returns the names of the methods on images in this folder, sorted.

    Example:
        >>> from vergence import methods
        >>> "masked_autoencoder" in methods.names()
        True
    """
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in OTHERS)


def get(name: str) -> type[ImageMethod]:
    """Returns a method's class by its file's name.

    Raises:
        ValueError: There is no such method; the error suggests the nearest known name.

    Example:
        >>> from vergence import methods
        >>> methods.get("variational_autoencoder").__name__
        'VariationalAutoencoder'
    """
    if name not in names():
        raise unknown("method", name, names(), HINT)
    module = importlib.import_module(f"{__name__}.{name}")
    classes = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, ImageMethod) and member.__module__ == module.__name__
    ]
    assert len(classes) == 1, f"{module} defines {len(classes)} methods; one paper, one file"
    return classes[0]
