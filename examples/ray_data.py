"""Score encoded images with Ray Data, and decide on all of them.

python examples/ray_data.py RUN PICTURES.parquet OUT

RUN must be readable by every worker. The model opens once in each process; rows that cannot be read have the reason in `error`.
"""

import sys

import numpy as np
import ray

import vergence


def main(run, source, out):
    rows = ray.data.read_parquet(source).map_batches(vergence.Scorer(run, column="image"), batch_size=256)
    rows.write_parquet(out)
    p = np.concatenate([batch["p_value"] for batch in ray.data.read_parquet(out).iter_batches(batch_size=100_000)])
    flagged = vergence.decide.select(p[np.isfinite(p)], fdr=0.1)
    print(f"{flagged.sum():,} of {len(p):,} flagged at a false-discovery rate of 0.1")


if __name__ == "__main__":
    main(*sys.argv[1:])
