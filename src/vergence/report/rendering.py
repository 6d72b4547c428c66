"""Renders a page: one HTML file that loads nothing from elsewhere.

The templates escape every value that they are given. Two texts alone are inserted as they are: this package's own ``page.css``
and ``page.js``. A content security policy lets the browser run exactly this script, by its SHA-256, so that even markup that
slipped through could not.
"""

import base64
import functools
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vergence.utils.checks import expect
from vergence.utils.files import explained, replacing, require_apart

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).parent
GENERATOR = b'content="vergence"'  # in the head of our pages
LISTED = 200  # unreadable files on a page


def write(path: Path, folder: str, sections: Mapping[str, str], *, steps: Mapping[str, Any] | None = None, **values: Any) -> Path:
    """Writes a page in one step, and returns its path; an older one stays until then.

    The ``folder`` of ``templates`` holds a file for each section, whose headings are ``sections`` in order, and ``header.html``,
    unless that of ``templates`` serves; ``steps`` are the JSON data of ``page.js``: what the map's slider steps through;
    ``values`` are what the templates show.
    """
    return _render(path, "page", folder=folder, sections=sections, steps=steps, **values)


def require_page(path: Path, read: Iterable[Any] = ()) -> None:
    """Raises a ValueError unless a page can be written: there is none, or one of ours, which is not ``read``."""
    require_apart(path, read)
    ours = not path.is_file() or GENERATOR in path.read_bytes()[:1000]
    expect(ours, f"no file, or an earlier page, at {path}", "another file", "move it, or choose another `out`")


def workbench(path: Path, data: Mapping[str, Any], *, skipped: Sequence[tuple[str, str]] = (), **values: Any) -> Path:
    """Writes a page on which items are filtered, sorted, searched, opened and marked, in one step, and returns its path.

    ``data`` are JSON data: ``workbench.js`` says what each column is. ``skipped`` are name and reason of each item that could not
    be read, ``values`` the texts ``title``, ``sentences``, ``input`` and ``meaning``, and perhaps ``encoder``, ``sampled``, and
    ``figures``: ``title``, ``words`` and ``figure`` of each chart.
    """
    more = f"{len(skipped) - LISTED:,} more are listed in skipped.csv." if len(skipped) > LISTED else ""
    return _render(path, "workbench", data=data, skipped=skipped[:LISTED], more_skipped=more, **values)


def _render(path: Path, name: str, /, **values: Any) -> Path:
    """Writes the page of a template with the style and the script of the same name, and returns its path."""
    script = (HERE / f"{name}.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = "".join((HERE / f"{part}.css").read_text(encoding="utf-8") for part in ("charts", name))
    page = _environment().get_template(f"{name}.html").render(style=style, allowed=f"'sha256-{digest}'", script=script, **values)
    with explained(path, "what it shows is safe: free space and repeat the command"), replacing(path) as part:
        part.write_text(page, encoding="utf-8", errors="replace")  # a name may hold half a surrogate pair
    return path


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    files = FileSystemLoader(HERE / "templates")
    environment = Environment(loader=files, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
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


def percent(x: Any) -> str:
    """Returns a share in %; a dash for what is no number.

    Example:
        >>> percent(0.125), percent(None)
        ('12.5', '–')
    """
    return f"{100 * x:.1f}" if is_number(x) and is_number(100 * x) else "–"
