"""Score encoded images with Daft, and decide on all of them.

python examples/daft_frame.py RUN PICTURES.parquet OUT
"""

import sys

import daft
import numpy as np
import pyarrow as pa
from daft import DataType, col

import vergence

TEXT = DataType.string()
OUTCOME = {"score": DataType.float64(), "p_value": DataType.float64(), "feature_set": TEXT, "error": TEXT}


def main(run, source, out):
    scorer = vergence.Scorer(run, column="image")

    @daft.func.batch(return_dtype=DataType.struct(OUTCOME))
    def outcome(image):
        return scorer(pa.table({"image": image.to_arrow()})).to_struct_array()

    rows = daft.read_parquet(source).with_column("outcome", outcome(col("image"))).exclude("image")
    rows.select(*[name for name in rows.column_names if name != "outcome"], *[
        col("outcome")[name].alias(name) for name in OUTCOME
    ]).write_parquet(out)  # fmt: skip
    p = np.array(daft.read_parquet(f"{out}/*.parquet").to_pydict()["p_value"])
    flagged = vergence.decide.select(p[np.isfinite(p)], fdr=0.1)
    print(f"{flagged.sum():,} of {len(p):,} flagged at a false-discovery rate of 0.1")


if __name__ == "__main__":
    main(*sys.argv[1:])
