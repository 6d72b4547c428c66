"""Profiles of wells without the sites that Vergence flagged: ``python examples/plate_profiles.py qc/sites.csv profiles.csv``.

``vergence check PLATE --plate MAP --against-where "compound = DMSO" --out qc`` writes ``sites.csv``. The profiles are a table
with the columns Metadata_Plate, Metadata_Well and Metadata_Site and a row for each site or cell. Without one, the measurements
of quality serve. Needs ``pip install pycytominer`` (1.7.1 was tried).
"""

import argparse

import pandas as pd
from pycytominer import aggregate, normalize

KEYS = ["Metadata_Plate", "Metadata_Well", "Metadata_Site"]
FLAG, CONTROL = "ImageQuality_vergence_flag", "Metadata_control"


def profiles_of_wells(quality: pd.DataFrame, profiles: pd.DataFrame | None = None) -> pd.DataFrame:
    """Returns a profile of each well, the median of its sites or cells that stay, in deviations from the control wells."""
    given = quality if profiles is None else profiles.merge(quality[[*KEYS, FLAG, CONTROL]], on=KEYS)
    kept = given[given[FLAG] == 0]
    features = [name for name in kept.columns if not name.startswith(("Metadata_", "ImageQuality_vergence_"))]
    wells = aggregate(kept, strata=[*KEYS[:2], CONTROL], features=features, operation="median")
    return normalize(wells, features=features, samples=f"{CONTROL} == 1", method="mad_robustize")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("quality", help="sites.csv of vergence check")
    parser.add_argument("profiles", nargs="?", help="table of sites or cells")
    parser.add_argument("--out", default="wells.csv")
    a = parser.parse_args()
    types = dict.fromkeys(KEYS, str)
    read = [pd.read_csv(path, dtype=types) for path in (a.quality, a.profiles) if path]
    found = profiles_of_wells(*read)
    found.to_csv(a.out, index=False)
    print(f"{len(found)} wells in {a.out}; {int((read[0][FLAG] == 1).sum())} sites were left out")
