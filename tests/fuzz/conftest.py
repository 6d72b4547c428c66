"""Makes the folder of valid files."""

import pytest


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    import torch
    from tests.fuzz.place import Place

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield Place(tmp_path_factory.mktemp("fuzz"))
    torch.set_default_dtype(before)
