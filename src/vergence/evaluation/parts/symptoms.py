"""The warning of a collapsed embedding, from its statistics; imports no torch, which a report does not need."""

from collections.abc import Mapping

__all__ = ["warning"]

ADVICE = (
    'try AdamW, a smaller learning rate, warm-up, a larger batch or a narrow projector (--set "projector=(256, 32)"), for '
    "images a recipe that starts from a closed form (--recipe patches, or patches_OBJECTIVE); check the views"
)


def warning(stats: Mapping[str, float], dim: int | None = None, advice: str = "") -> str | None:
    """Returns one line that names the collapse and what to try, or None for an embedding that did not collapse.

    Args:
        stats: Statistics with ``std`` and ``effective_rank``, as from `collapse`.
        dim: Number of features D. A small rank is ignored for D below 8, a small spread for D = 1; None assumes a wide embedding.
        advice: What else to try with the objective at hand; a clause, or empty.

    Example:
        >>> warning({"std": 0.02, "effective_rank": 5.0}, dim=256).split(":")[0]
        'the embedding collapses to one direction (spread 0.02, below 0.1)'
        >>> warning({"std": 0.9, "effective_rank": 40.0}, dim=256) is None
        True
    """
    std, rank = stats["std"], stats["effective_rank"]
    remedy = ADVICE + (f"; {advice}" if advice else "")
    if std < 0.1 and dim != 1:  # the direction of one feature is its sign
        return f"the embedding collapses to one direction (spread {std:.2g}, below 0.1): {remedy}"
    if rank < 2 and (dim is None or dim >= 8):
        return f"the embedding collapses to a line (effective rank {rank:.2g}, below 2): {remedy}"
    return None
