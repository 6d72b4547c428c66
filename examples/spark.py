"""Score encoded images with Spark.

python examples/spark.py RUN PICTURES.parquet OUT

Needs pyspark, pandas and Java; every worker needs vergence, and reads RUN.
"""

import os
import sys

from pyspark.sql import SparkSession

import vergence

OUTCOME = "score double, p_value double, feature_set string, error string"


def main(run, source, out):
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.getOrCreate()
    rows = spark.read.parquet(source)
    kept = ", ".join(f"{name} {kind}" for name, kind in rows.dtypes if name != "image")
    rows.mapInPandas(vergence.Scorer(run, column="image"), f"{kept}, {OUTCOME}").write.parquet(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
