"""Benchmarks are scripts: each finds the modules beside it, as when Python runs it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
