#!/bin/bash
# Score a source in 100 parts, then merge them: sbatch examples/slurm.sh RUN SOURCE PARTS
# A part that was killed goes on where it stopped when it is submitted again; one that is finished takes no time.
#SBATCH --array=1-100
#SBATCH --cpus-per-task=4
#SBATCH --mem=4G
#SBATCH --requeue
set -euo pipefail
vergence score "$1" "$2" --shard "$SLURM_ARRAY_TASK_ID/100" --out "$3"
# when the array is done: vergence merge PARTS --out scores.parquet
