#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A facility whose compute nodes reach nothing but its own login nodes: the native trainer on one CPU node, through an SSH
# tunnel that the job opens to a login node. What is yours to change is marked with <-.
#
#   sbatch tunnel.sh
#
# The key is one that only this job uses: in ~/.ssh/authorized_keys on the login node put before it
#   restrict,port-forwarding,permitopen="hub.example.org:443"
# Where compute nodes may not even use SSH, ask your facility for a proxy, and take proxy.sh.
#
#SBATCH --job-name=beringia
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
# B: the signal goes to this script, which ends the site first and the tunnel after it.
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
set -eu
login=login1.example.org                          # <-
hub=hub.example.org                               # <-
export BERINGIA_TOKEN_FILE=$HOME/.config/beringia/token BERINGIA_CA=$HOME/.config/beringia/ca.pem # <- from the hub's operator
data=$HOME/beringia/data state=$SCRATCH/beringia/state name=cpu-one # <-
port=$((20000 + SLURM_JOB_ID % 20000))

ssh -N -o BatchMode=yes -o ExitOnForwardFailure=yes -o ServerAliveInterval=30 -i "$HOME/.ssh/beringia-tunnel" \
    -D "127.0.0.1:$port" "$login" &
tunnel=$!
trap 'kill $tunnel 2> /dev/null || true' EXIT

# The tunnel is a SOCKS proxy, so that the hub keeps its own name and certificate. The site waits until it is there.
export https_proxy=socks5h://127.0.0.1:$port
beringia site --hub "https://$hub" --name "$name" --data "$data" --state "$state" --batch 64 --micro-batch 8 \
    --threads "$SLURM_CPUS_PER_TASK" &
site=$!
trap 'kill -USR1 $site 2> /dev/null || true' USR1 TERM
# A signal ends the first wait; the site then hands in, and its own status is this job's.
wait "$site" || wait "$site"
