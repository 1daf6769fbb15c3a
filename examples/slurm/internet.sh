#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A facility whose compute nodes reach the internet: PyTorch on two nodes of four NVIDIA GPUs. What is yours to change is
# marked with <-.
#
#   sbatch internet.sh
#
#SBATCH --job-name=beringia
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
# SIGUSR1 comes ten minutes before the end: the site hands in what it has, saves, and leaves.
#SBATCH --signal=USR1@600
#SBATCH --requeue
set -eu
export BERINGIA_HUB=https://hub.example.org       # <-
export BERINGIA_TOKEN_FILE=$HOME/.config/beringia/token BERINGIA_CA=$HOME/.config/beringia/ca.pem # <- from the hub's operator
export BERINGIA_NAME=nvidia-one                   # <- of this facility alone
export BERINGIA_DATA=$HOME/beringia/data          # <- the run's packed data set, copied here once
export BERINGIA_STATE=$SCRATCH/beringia/state     # <- kept from job to job; every node sees it
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
# One Slurm task a rank, without torchrun: so the signal reaches each rank, and one that dies ends the others.
# shellcheck disable=SC2016
exec srun --kill-on-bad-exit=1 bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS \
    exec python3 "$HOME/beringia/examples/pytorch/ddp.py" "$HOME/beringia/config.json"'
