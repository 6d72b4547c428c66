"""What verbs return, as a table: for pandas, and in a notebook."""

import abc
import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Tabular"]

SHOWN = 10  # rows in a notebook


class Tabular(abc.ABC):
    """A result that is a table. A class gives ``table``, its columns by name, all of one length.

    Example:
        >>> class Squares(Tabular):
        ...     def table(self):
        ...         return {"n": [1, 2], "square": [1, 4]}
        >>> Squares()._repr_html_()
        '<table><tr><th>n</th><th>square</th></tr><tr><td>1</td><td>1</td></tr><tr><td>2</td><td>4</td></tr></table>'
    """

    @abc.abstractmethod
    def table(self) -> Mapping[str, Sequence[Any]]:
        """Returns the columns by name."""

    def to_pandas(self) -> "pd.DataFrame":
        """Returns the table as a data frame of pandas.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas as pd

        return pd.DataFrame({name: list(values) for name, values in self.table().items()})

    def _repr_html_(self) -> str:
        """Returns the first ten rows."""
        table = self.table()
        n = len(next(iter(table.values()), ()))
        rows = ["".join(f"<td>{_shown(values[i])}</td>" for values in table.values()) for i in range(min(n, SHOWN))]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in table)
        more = f"<p>and {n - SHOWN:,} more rows</p>" if n > SHOWN else ""
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in (head, *rows))}</table>{more}"


def _shown(value: Any) -> str:
    return html.escape(f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value))
