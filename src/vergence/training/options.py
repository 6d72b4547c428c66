"""Options of objectives under the names of earlier versions, so that the run folders from then still load."""

from collections.abc import Callable
from typing import Any

__all__ = ["current_options"]

GJE_COVARIANCE: dict[str, dict[str, Any]] = {  # once named the source of the covariance, too
    "batch": {},
    "ema": {"likelihood": "ema"},
    "learned": {"likelihood": "learned"},
    "low_rank": {"likelihood": "learned", "covariance": "low_rank"},
}
RENAMED_OPTIONS: dict[tuple[str, str], Callable[[Any], dict[str, Any]]] = {  # runs from before version 0.1
    ("gje", "covariance"): lambda value: GJE_COVARIANCE.get(value, {"covariance": value}),
    ("gmje", "rate"): lambda rate: {"momentum": 1 - rate},
    ("gmje_smc", "rho"): lambda rho: {"momentum": 1 - rho},
}


def current_options(objective: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns an objective's options under their current names: runs from before version 0.1 record others.

    Example:
        >>> current_options("gje", {"covariance": "ema"}), current_options("gmje", {"rate": 0.25})
        ({'likelihood': 'ema'}, {'momentum': 0.75})
    """
    old = {name: value for name, value in options.items() if (objective, name) in RENAMED_OPTIONS}
    renamed = [RENAMED_OPTIONS[objective, name](value) for name, value in old.items()]
    return {key: value for part in renamed for key, value in part.items()} | {k: v for k, v in options.items() if k not in old}
