#!/bin/bash
# Train a recipe on several machines with Slurm; the same command resumes it.
#
#     sbatch examples/slurm.sh sabour2017/mnist-r3-recon
#     sbatch --nodes 4 --gpus-per-node 4 examples/slurm.sh RECIPE FOLDER
#
# FOLDER, by default runs/RECIPE where the job is submitted, must be accessible from all machines.
#SBATCH --job-name=capsules
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120

set -e
recipe=${1:-sabour2017/mnist-r3-recon}
out=${2:-$SLURM_SUBMIT_DIR/runs/$recipe}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000)) # two jobs may share a machine

# Slurm sends SIGTERM two minutes before the time limit: all processes save and stop.
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" --max-restarts 3 \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$head:$port" \
    -m torchcaps train "$recipe" --out "$out"
