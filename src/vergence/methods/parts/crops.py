"""Small crops of several views: their side, and whether an encoder takes them."""

from torch import nn

from vergence.encoders.networks import width


def local_side(size: int) -> int:
    """Returns the side of small crops: 3/7 of the images' (the paper's 96 of 224 pixels), rounded to a multiple of 4.

    Example:
        >>> local_side(224), local_side(32), local_side(8)
        (96, 12, 4)
    """
    return max(4, 4 * round(size * 3 / 28))


def require_crops(encoder: nn.Module, shape: tuple[int, ...]) -> None:
    """Raises a ValueError unless an encoder takes crops of ``shape`` (C, H, W)."""
    try:
        width(encoder, shape)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"expected an encoder that takes crops of {shape[1]} pixels, found one that does not ({str(error).splitlines()[0]}); "
            "set local_size, local_crops=0, or of a transformer --encoder timm:NAME,dynamic_img_size=True"
        ) from None
