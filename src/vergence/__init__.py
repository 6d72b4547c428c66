"""Find unusual images, duplicates and mismatched pairs, at an error rate you choose.

``check`` finds anomalies and duplicates in images, ``check_plate`` bad sites of plates, ``calibrate`` flags scores, ``match``
finds pairs, ``tables`` fits p(y | x).
``train``, ``load``, ``evaluate``, ``score`` and ``compare`` make and use learned representations; ``advise`` helps before that.
Packages: ``decide``, ``images``, ``tables``; below them ``densities``, ``data``, ``report``, ``mixtures``, ``linear``, ``utils``;
``learn`` and ``advice`` may change. Larger scores are more anomalous; log-densities are in nats.
"""

import os
from typing import TYPE_CHECKING

from vergence.utils.lazy import on_request
from vergence.utils.version import __version__

# Read when torch loads. A thread that waits for the others sleeps: on a busy machine it would take the time that they need.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__all__ = [
    "Embedder",
    "Run",
    "Scorer",
    "__version__",
    "advise",
    "calibrate",
    "check",
    "check_plate",
    "compare",
    "demo",
    "evaluate",
    "load",
    "match",
    "score",
    "train",
]
__all__ += ["advice", "data", "decide", "densities", "images", "learn", "linear", "mixtures", "report", "tables", "utils"]

if TYPE_CHECKING:
    from vergence import advice, data, decide, densities, images, learn, linear, mixtures, report, tables, utils
    from vergence.advice.views import advise
    from vergence.decide.decisions import calibrate
    from vergence.decide.matching import match
    from vergence.images.check import check
    from vergence.images.demo import demo
    from vergence.images.plates import check_plate
    from vergence.learn.runs.callables import Embedder, Scorer
    from vergence.learn.runs.compare import compare
    from vergence.learn.runs.evaluate import evaluate
    from vergence.learn.runs.run import Run, load
    from vergence.learn.runs.score import score
    from vergence.learn.runs.train import train
else:
    __getattr__, __dir__ = on_request(__name__)  # so that ``import vergence`` loads no torch
