import doctest
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.float32
def test_the_examples_of_the_page_run():
    page = Path(__file__).parents[2] / "docs" / "detection.md"
    found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert found.attempted >= 15 and found.failed == 0
