"""The experiments' tests run as the library's do: float64, a seed of its own, warnings are errors."""

from tests.conftest import _numerics  # noqa: F401
