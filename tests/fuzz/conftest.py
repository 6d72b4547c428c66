"""Makes the folder of valid files, and prints what the cases of each target came to."""

import pytest


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    import torch
    from tests.fuzz.place import Place

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield Place(tmp_path_factory.mktemp("fuzz"))
    torch.set_default_dtype(before)


def pytest_terminal_summary(terminalreporter):
    """Adds one line for each target, and one for all."""
    totals = {}
    for report in (r for reports in terminalreporter.stats.values() for r in reports if hasattr(r, "user_properties")):
        for key, value in report.user_properties:
            if key == "fuzz" and report.when == "call":
                name, *numbers = value
                totals[name] = [a + b for a, b in zip(totals.get(name, [0] * 4), numbers, strict=True)]
    if totals:
        totals["all"] = [sum(column) for column in zip(*totals.values(), strict=True)]
        terminalreporter.section("hostile cases")
        terminalreporter.write_line(f"{'target':28}{'cases':>8}{'success':>9}{'refused':>9}{'findings':>9}")
        for name, (cases, success, refused, found) in totals.items():
            terminalreporter.write_line(f"{name:28}{cases:8}{success:9}{refused:9}{found:9}")
