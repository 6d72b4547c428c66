"""Makes the section "Example" of docstrings the "Examples" that the site shows as code; the project writes it in the singular."""

from typing import Any

from griffe import Extension, Object


class Singular(Extension):
    """Changes the heading of every docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Changes one docstring."""
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
