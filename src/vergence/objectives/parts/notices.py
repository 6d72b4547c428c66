"""Messages about what an objective's diagnostics show to be wrong, each with cause and remedy."""

from collections.abc import Mapping

__all__ = ["notices"]

WEAK = "the regularization is too weak; with a likelihood as the loss, use loss='mi_kl', or increase beta or eta"


def notices(stats: Mapping[str, float]) -> dict[str, str]:
    """Returns messages by the name of the diagnostic that shows a problem; what is missing is not judged.

    Args:
        stats: Diagnostics of the last batch. ``variance``: mean over features, judged below 1e-4 where there is ``mahalanobis``
            too, as losses on directions leave the scale free. ``condition`` of the covariance, judged above 1e5. ``mahalanobis``:
            mean per feature, 1 where the density fits, judged above 2. ``ess``: effective share of a bank's particles, judged
            below 0.1. ``component_share``: effective share of a mixture's components, judged below 0.2.

    Example:
        >>> list(notices({"variance": 1e-7, "mahalanobis": 1.0, "ess": 0.05}))
        ['variance', 'ess']
        >>> notices({"variance": 1.0, "condition": 40.0, "mahalanobis": 1.01, "component_share": 0.8})
        {}
    """
    messages = _collapse(stats)
    if stats.get("ess", 1.0) < 0.1:
        hint = "raise momentum, u, or the temperature"
        messages["ess"] = f"few particles carry the bank's weight (effective share {stats['ess']:.2g}): {hint}"
    if stats.get("component_share", 1.0) < 0.2:
        share = f"effective share {stats['component_share']:.2g}"
        messages["component_share"] = f"few components are used ({share}): set fewer components, or lower the floor"
    return messages


def _collapse(stats: Mapping[str, float]) -> dict[str, str]:
    """Returns a message where embeddings shrink or lose directions, or where the density lags behind them; at most one."""
    fits = abs(stats.get("mahalanobis", 0.0) - 1) < 0.05
    trap = "; Mahalanobis distances still look like a perfect fit (the trace trap)" if fits else ""
    if stats.get("variance", 1.0) < 1e-4 and "mahalanobis" in stats:
        return {"variance": f"the embedding shrinks to a point (mean variance {stats['variance']:.2g}{trap}): {WEAK}"}
    if stats.get("condition", 1.0) > 1e5:
        lost = f"the embedding loses directions (condition {stats['condition']:.2g}{trap})"
        return {"condition": f"{lost}: {WEAK}, or use a narrower projector"}
    if stats.get("mahalanobis", 1.0) > 2:
        hint = "lower the learning rate, or let the density follow faster (a lower momentum, a smaller bank, more EM steps)"
        return {"mahalanobis": f"the density lags behind the embedding (Mahalanobis {stats['mahalanobis']:.2g} of 1): {hint}"}
    return {}
