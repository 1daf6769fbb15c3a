#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A facility whose compute nodes reach the internet by an HTTP proxy only: PyTorch on four AMD GPUs of one node. PyTorch
# for ROCm calls them cuda, so the script is the same. What is yours to change is marked with <-.
#
#   sbatch proxy.sh
#
#SBATCH --job-name=beringia
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=14
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@600
#SBATCH --requeue
set -eu
# libberingia heeds these as curl does. A name and password go into the address, in a file only you can read.
https_proxy=$(cat "$HOME/.config/beringia/proxy") # <- http://user:secret@proxy.example.org:3128
export https_proxy no_proxy=localhost,127.0.0.1
export BERINGIA_HUB=https://hub.example.org       # <-
export BERINGIA_TOKEN_FILE=$HOME/.config/beringia/token BERINGIA_CA=$HOME/.config/beringia/ca.pem # <- from the hub's operator
export BERINGIA_NAME=amd-one                      # <-
export BERINGIA_DATA=$HOME/beringia/data          # <-
export BERINGIA_STATE=$SCRATCH/beringia/state     # <-

module load rocm                                  # <- what your PyTorch wants
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
# One Slurm task a rank: so the signal reaches each rank.
# shellcheck disable=SC2016
exec srun --kill-on-bad-exit=1 bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS \
    exec python3 "$HOME/beringia/examples/pytorch/ddp.py" "$HOME/beringia/config.json"'
