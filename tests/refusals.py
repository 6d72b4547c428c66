"""The shape of every refusal: a ValueError in one line."""

import pytest


def refuses(words, call, /, *args, **settings):
    """Asserts that a call is refused in one line that matches the words."""
    with pytest.raises(ValueError, match=words) as caught:
        call(*args, **settings)
    assert "\n" not in str(caught.value)
