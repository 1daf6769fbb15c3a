#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# release only
# A trainer at its limits. What goes wrong: the numbers leave the range of floats, so that loss or gradient is not
# finite; the memory that a model wants is not there. Both must end with one line that says what and where and what to do,
# with their own exit status, and the first must leave the last good state on the disk. And `beringia bench train` must
# print what it promises to print.
set -u
cd "${ROOT:-.}" || exit 2
program=${B:-build/release}/beringia
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
for i in 1 2 3 4 5 6 7 8; do cat README.md ARCHITECTURE.md > "$dir/$i.txt"; done
"$program" pack --out "$dir/data" --tokenizer bytes --seq-len 64 --heldout 0 "$dir"/*.txt > /dev/null 2>&1

check() { # name, condition's status
    if [ "$2" -eq 0 ]; then echo "ok $1"; else
        echo "FAIL $1"
        sed 's/^/  /' "$dir/out" "$dir/err"
    fi
}

train() { "$program" train --central --data "$dir/data" --model share/models/tiny.json --threads 1 "$@" > "$dir/out" 2> "$dir/err"; }

train --out "$dir/nan" --lr 1e3 --warmup-tokens 0 --clip 0 --tokens 64k --weight-decay 1000
status=$?
[ $status -eq 19 ] && [ "$(wc -l < "$dir/err")" -eq 1 ] && grep -q 'step [0-9]*, positions [0-9]* to [0-9]*: .*not finite' "$dir/err" \
    && [ -s "$dir/nan/checkpoint.safetensors" ]
check limits_a_loss_that_is_not_finite_names_step_and_batch $?

# The state that was kept is finite: the same command goes on from it and fails at the same step.
first=$(grep -o 'step [0-9]*, positions [0-9]* to [0-9]*' "$dir/err")
train --out "$dir/nan" --lr 1e3 --warmup-tokens 0 --clip 0 --tokens 64k --weight-decay 1000
status=$?
[ $status -eq 19 ] && grep -q "^resumed" "$dir/out" && [ "$(grep -o 'step [0-9]*, positions [0-9]* to [0-9]*' "$dir/err")" = "$first" ]
check limits_the_last_good_state_is_kept $?

(ulimit -v 2000000; "$program" bench train --model share/models/qwen3-0.6b.json --batch 1 --steps 1 --threads 1 > "$dir/out" 2> "$dir/err")
status=$?
[ $status -eq 21 ] && [ "$(wc -l < "$dir/err")" -eq 1 ] && grep -q 'GiB asked for, .* GiB free: .*micro-batch' "$dir/err"
check limits_memory_that_is_not_there_is_told_with_the_remedy $?

"$program" bench train --model share/models/tiny.json --seq-len 32 --batch 2 --steps 2 --threads 2 --recompute > "$dir/out" 2> "$dir/err"
status=$?
ok=$status
for word in '^memory .*weights.*gradients.*moments.*activations.*workspace' '^tokens/s ' '^products ' 'adamw' 'attention grad' \
    ' share_own=' ' first_loss=5\.[0-9]*'; do grep -q -- "$word" "$dir/out" || ok=1; done
check limits_bench_train_prints_its_figures $ok
