"""The benchmark of peak memory, on few items."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "memory.py"


@pytest.mark.slow
def test_memory_is_measured_beyond_that_of_few_items(tmp_path):
    command = [sys.executable, str(FILE), "--scratch", str(tmp_path / "scratch"), "--limit", "1500", "--only", "predict"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--out", str(tmp_path / "rows.jsonl")], check=True, capture_output=True, env=environment)
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["items"] == 1500 and row["asked"] == 10_000_000 and row["threads"] == 1
    assert 1 << 26 < row["bytes_of_1000"] < 4 << 30 and row["beyond"] == row["bytes"] - row["bytes_of_1000"] < 1.5 * 2**30
