"""What the demonstration says of its result; the demonstration itself is run from the wheel by ``make wheel``."""

import pytest

from vergence.runs.demo import _compared


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (0.875, 0.854, "better than"),
        (0.875, 0.860, "about as well as"),
        (0.875, 0.890, "about as well as"),
        (0.875, 0.900, "less well than"),
    ],
)
def test_a_difference_within_the_standard_error_is_none(ours, theirs, words):
    assert _compared(ours, theirs, 0.0175) == words
