"""Flags with a stated rate from a detector of PyOD, beside its own threshold.

python examples/pyod_scores.py

PyOD flags the share `contamination` of the items of its fit, whatever they are. Calibration says how many flags are wrong.
"""

import numpy as np
from pyod.models.ecod import ECOD

from vergence.decide import Calibrated

rng = np.random.default_rng(0)
ordinary, odd = rng.normal(size=(3000, 6)), rng.normal(3, 1, size=(40, 6))
new = np.concatenate([rng.normal(size=(1000, 6)), odd])

detector = ECOD(contamination=0.1).fit(ordinary)
own = detector.predict(new).astype(bool)
found = Calibrated(ECOD()).fit(ordinary).decide(new, fdr=0.1)
for name, flag in (("PyOD, contamination 0.1", own), ("calibrated, fdr 0.1", found.flag)):
    print(f"{name}: {flag[1000:].sum()} of 40 odd items flagged, and {flag[:1000].sum()} ordinary ones")
print(found.sentences[0])
