#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# timeout: 120
# The protocol in virtual time: seeds that failed once, and some two thousand more. What it guards
# against: a position lost or counted twice, an acknowledgement that a crash undoes, a run that does not
# come to its end once the faults stop. docs/simulation.md tells how to replay a seed.
set -u
status=0

# run NAME ARGUMENTS: one line ok or FAIL, and what was found.
run() {
    local name=$1 out
    shift
    if out=$("$BERINGIA" sim "$@" 2>&1); then
        echo "ok $name: $(tail -n 1 <<< "$out")"
    else
        tail -n 20 <<< "$out"
        echo "FAIL $name"
        status=1
    fi
}

run sim_seeds_that_failed_once --file "$ROOT/test/seeds/sim.txt" --synchronous 0
run sim_two_thousand_seeds --seeds 2000
run sim_synchronous_rounds --seeds 1000 --synchronous 1
run sim_two_levels_of_hubs --levels 2 --seeds 100
run sim_three_levels_of_hubs --levels 3 --seeds 40
run sim_three_levels_of_sixty_sites --levels 3 --sites 60 --seeds 2
for seed in 844 2134 15485 23077 25480; do # a contribution of skips alone, and a region that waits for it
    run sim_three_levels_seed_$seed --levels 3 --seed $seed --no-trace
done
run sim_a_hundred_sites --sites 100 --seeds 3
run sim_seeds_of_synchronous_rounds_that_failed_once --file "$ROOT/test/seeds/synchronous.txt" --synchronous 1
run sim_the_same_seed_the_same_trace --seeds 100 --twice

# A site more than there is room for is said, and not cut off.
if "$BERINGIA" sim --sites 1001 > /dev/null 2>&1; then
    echo "FAIL sim_refuses_more_sites_than_fit"
    status=1
else
    echo "ok sim_refuses_more_sites_than_fit"
fi

# A mistyped option must not look like a pass.
if "$BERINGIA" sim --seds 5 > /dev/null 2>&1; then
    echo "FAIL sim_refuses_what_it_does_not_know"
    status=1
else
    echo "ok sim_refuses_what_it_does_not_know"
fi
exit $status
