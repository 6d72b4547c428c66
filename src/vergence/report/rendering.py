"""Renders a page: one HTML file that loads nothing from elsewhere.

The templates escape every value that they are given. Three texts alone are inserted as they are: this package's own
``page.css`` and ``page.js``, and plotly. A content security policy lets the browser run exactly these two scripts, by their
SHA-256, so that even markup that slipped through could not.
"""

import base64
import functools
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vergence.utils.files import explained, replacing

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["count", "is_number", "number", "percent", "write"]

HERE = Path(__file__).parent


def write(path: Path, folder: str, sections: Mapping[str, str], figures: Mapping[str, Any], **values: Any) -> Path:
    """Writes a page in one step; an older one stays until then.

    Args:
        path: File to write.
        folder: Folder of ``templates`` that holds ``header.html`` and a file for each section.
        sections: Heading of each section by the name of its file, in order.
        figures: JSON data for ``page.js``: plotly figures by the name that their place on the page has, and more.
        **values: What the templates show.

    Returns:
        ``path``.
    """
    scripts = {"plotly": _plotly() if figures else "", "script": (HERE / "page.js").read_text(encoding="utf-8")}
    page = (
        _environment()
        .get_template("page.html")
        .render(
            folder=folder,
            sections=sections,
            figures=figures,
            style=(HERE / "page.css").read_text(encoding="utf-8"),
            allowed=" ".join(f"'sha256-{_digest(text)}'" for text in scripts.values()),
            **scripts,
            **values,
        )
    )
    with explained(path, "what it shows is safe: free space and repeat the command"), replacing(path) as part:
        part.write_text(page, encoding="utf-8", errors="replace")  # a name may hold half a surrogate pair
    return path


def _plotly() -> str:
    """Returns plotly, which takes 4 MB of a page."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    environment.filters |= {"number": number, "count": count, "percent": percent}
    return environment


def is_number(x: Any) -> bool:
    """Returns whether ``x`` is a finite number.

    Example:
        >>> is_number(2.5), is_number(float("nan")), is_number(10**400), is_number("2"), is_number(True)
        (True, False, False, False, False)
    """
    return isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) <= sys.float_info.max


def number(x: Any) -> str:
    """Returns four digits of a number; a dash for what is none."""
    return f"{x:.4g}" if is_number(x) else "–"


def count(x: Any) -> str:
    """Returns a whole number with separated thousands; a dash for what is none."""
    return f"{x:,}" if isinstance(x, int) and not isinstance(x, bool) else "–"


def percent(x: Any, form: str = ".1f") -> str:
    """Returns a share in %; a dash for what is no number.

    Example:
        >>> percent(0.125), percent(-0.5, "+.1f"), percent(None)
        ('12.5', '-50.0', '–')
    """
    return format(100 * x, form) if is_number(x) and is_number(100 * x) else "–"
