"""Methods, which turn a batch into named loss terms: objectives on pairs (`paired`), and a file for each method on images."""

from typing import TYPE_CHECKING

from vergence.learn import classes
from vergence.utils.checks import require_choice
from vergence.utils.files import load_outside
from vergence.utils.lazy import on_request

if TYPE_CHECKING:
    from vergence.learn.methods.core import ImageMethod, Method
    from vergence.learn.methods.denoising_autoencoder import DenoisingAutoencoder
    from vergence.learn.methods.dino import Dino
    from vergence.learn.methods.i_jepa import IJepa
    from vergence.learn.methods.masked_autoencoder import MaskedAutoencoder
    from vergence.learn.methods.variational_autoencoder import VariationalAutoencoder
else:
    __getattr__, __dir__ = on_request(__name__)

__all__ = ["DenoisingAutoencoder", "Dino", "IJepa", "ImageMethod", "MaskedAutoencoder", "Method", "VariationalAutoencoder"]
__all__ += ["get", "names"]

HINT = "objectives on pairs are chosen with `objective`"  # of an unknown name


def names() -> list[str]:
    """Returns the names of the methods on images, those of their files, sorted."""
    return sorted(classes(__name__))


def get(name: str) -> "type[ImageMethod]":
    """Returns a method's class by its file's name; an unknown name is an error with the nearest one.

    Args:
        name: One of `names`.

    Example:
        >>> from vergence.learn import methods
        >>> methods.get("variational_autoencoder").__name__
        'VariationalAutoencoder'
    """
    require_choice("a method", name, names(), HINT)
    return load_outside("method", f"{__name__}.{name}:{classes(__name__)[name]}", "")  # type: ignore[no-any-return]
