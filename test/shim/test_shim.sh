#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The shims against programs that are not ours: Python for single calls, the sqlite3 shell for a
# database. What must hold: an error is seen by the program, what was fsynced outlives a power cut,
# what was not is gone (or torn), and the clocks go as told.
set -u
here=$(cd "$(dirname "$0")" && pwd)
tools=$here/../../build/tools
"$here/build" || { echo "FAIL shim_build"; exit 1; }
python=$(command -v /usr/bin/python3 || command -v python3) || { echo "skip shim: no python3"; exit 0; }
w=$(mktemp -d "${SCRATCH:-${TMPDIR:-/tmp}}/brg-shim-XXXXXX")
trap 'rm -rf "$w"' EXIT
mkdir "$w/d"
failed=0

# expect NAME CONDITION...: the condition is a command
expect() {
    local name=$1
    shift
    if "$@"; then echo "ok $name"; else echo "FAIL $name"; failed=1; fi
}
control() { printf '%s\n' "$@" > "$w/control.new"; mv "$w/control.new" "$w/control"; }
# under: a Python program, read from stdin, in $w/d, with the shim
under() { { (cd "$w/d" && BERINGIA_FAULTFS=$w/control LD_PRELOAD=$tools/faultfs.so "$python" - "$@"); } 2> "$w/err"; }
cut_power() { "$tools/powercut" "$w/log" "$@" > "$w/cut.out" 2>&1 || cat "$w/cut.out"; }
fresh() { rm -rf "$w/d" "$w/log" "$w/log.kept"; mkdir "$w/d"; }

# ---- Errors
control "fail $w/d/a fsync EIO nth=2"
out=$(under << 'PY'
import os, errno
f = os.open("a", os.O_CREAT | os.O_WRONLY)
def sync():
    try: os.fsync(f); return "fine"
    except OSError as e: return errno.errorcode[e.errno]
print(sync(), sync(), sync())
PY
)
expect shim_fsync_fails_at_the_nth_call test "$out" = "fine EIO fine"

control "fail $w/d write EIO p=0.5" "seed 7"
out=$(under << 'PY'
import os
f = os.open("a", os.O_CREAT | os.O_WRONLY); bad = 0
for i in range(400):
    try: os.write(f, b"x")
    except OSError: bad += 1
print(bad)
PY
)
expect shim_writes_fail_by_chance test "$out" -gt 150 -a "$out" -lt 250

control "space $w/d 1000"
out=$(under << 'PY'
import os, errno
f = os.open("b", os.O_CREAT | os.O_WRONLY); n = 0
try:
    while True: n += os.write(f, b"x" * 300)
except OSError as e: print(n, errno.errorcode[e.errno], os.stat("b").st_size)
PY
)
expect shim_disk_full_after_its_bytes test "$out" = "1000 ENOSPC 1000"

control "short $w/d p=1"
out=$(under << 'PY'
import os
f = os.open("c", os.O_CREAT | os.O_WRONLY)
n = os.write(f, b"x" * 1000); print(0 < n < 1000 and os.stat("c").st_size == n)
PY
)
expect shim_short_writes test "$out" = True

control "fail $w/d rename EIO"
out=$(under << PY
import os
open("e", "w").close()
try: os.rename("e", "f"); print("renamed")
except OSError:
    with open("$w/control", "w") as c: c.write("# nothing\n")
    os.rename("e", "f"); print("later")
PY
)
expect shim_rules_change_while_it_runs test "$out" = later

# ---- Power cuts
fresh; control "log $w/log" "root $w/d"
under << 'PY'
import os
d = os.open(".", os.O_RDONLY)
f = os.open("a", os.O_CREAT | os.O_RDWR)
os.pwrite(f, b"A" * 2000, 0); os.fsync(f); os.fsync(d)
os.pwrite(f, b"B" * 500, 100); os.pwrite(f, b"C" * 900, 1900); os.ftruncate(f, 2500)
os.kill(os.getpid(), 9)
PY
cut_power
expect shim_unsynced_bytes_and_size_are_lost \
    cmp -s "$w/d/a" <(head -c 2000 /dev/zero | tr '\0' A)

fresh
under << 'PY'
import os
d = os.open(".", os.O_RDONLY)
def put(name, text, sync):
    f = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC); os.write(f, text)
    if sync: os.fsync(f)
    os.close(f)
put("head", b"old", True); put("gone", b"still", True); os.fsync(d)
put("head.tmp", b"new", True); os.rename("head.tmp", "head")
os.unlink("gone"); put("fresh", b"x", True)
PY
cut_power
expect shim_rename_without_dir_sync_is_lost test "$(cat "$w/d/head")" = old
expect shim_unlink_without_dir_sync_is_lost test "$(cat "$w/d/gone" 2>&1)" = still
expect shim_create_without_dir_sync_is_lost test ! -e "$w/d/fresh"

fresh
under << 'PY'
import os
d = os.open(".", os.O_RDONLY)
def put(name, text, sync):
    f = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC); os.write(f, text)
    if sync: os.fsync(f)
    os.close(f)
put("one.tmp", b"whole", True); os.rename("one.tmp", "one")
put("two.tmp", b"whole", False); os.rename("two.tmp", "two"); os.fsync(d)
PY
cut_power
expect shim_synced_file_and_name_stay test "$(cat "$w/d/one")" = whole
expect shim_name_without_bytes_is_an_empty_file test -e "$w/d/two" -a ! -s "$w/d/two"

fresh
under << 'PY'
import os
d = os.open(".", os.O_RDONLY); f = os.open("a", os.O_CREAT | os.O_RDWR)
os.pwrite(f, bytes(409600), 0); os.fsync(f); os.fsync(d)
for i in range(100): os.pwrite(f, b"N" * 4096, i * 4096)
PY
cut_power --keep 0.5 --seed 3
new=$(tr -dc N < "$w/d/a" | wc -c)
expect shim_a_part_survives_with_keep test "$new" -gt 100000 -a "$new" -lt 300000

# ---- A database: every row that was acknowledged is there after the cut, and the file is sound
if command -v sqlite3 > /dev/null; then
    lost=0 unsound=0 beyond=0
    # Beside WAL a rollback journal, which needs EXTRA: with FULL its unlink, which is the commit, is
    # not followed by a sync of the directory, and the last row may go.
    for mode in "WAL FULL" "DELETE EXTRA"; do
        for round in 1 2 3 4; do
            fresh; control "log $w/log" "root $w/d"
            (cd "$w/d" && {
                echo "PRAGMA journal_mode=${mode% *}; PRAGMA synchronous=${mode#* }; CREATE TABLE t(n INTEGER PRIMARY KEY, x);"
                for i in $(seq 1 $((20 + 7 * round))); do
                    echo "INSERT INTO t VALUES($i, hex(randomblob(300))); SELECT 'acknowledged ' || $i;"
                done
                echo "BEGIN; INSERT INTO t SELECT n + 1000, x FROM t; SELECT 'open';"
                echo ".shell kill -9 \$PPID"
            } | BERINGIA_FAULTFS=$w/control LD_PRELOAD=$tools/faultfs.so sqlite3 a.db > "$w/rows" 2> /dev/null) 2> /dev/null
            if [ $((round % 2)) = 0 ]; then cut_power --keep 0.5 --seed "$round"; else cut_power; fi
            want=$(grep -c acknowledged "$w/rows")
            [ "$want" -gt 0 ] || lost=1
            have=$(sqlite3 "$w/d/a.db" "SELECT count(*) FROM t WHERE n < 1000" 2>&1)
            [ "$have" = "$want" ] || { lost=1; echo "  $mode: acknowledged $want, found $have"; }
            [ "$(sqlite3 "$w/d/a.db" "SELECT count(*) FROM t WHERE n > 1000")" = 0 ] || beyond=1
            [ "$(sqlite3 "$w/d/a.db" "PRAGMA integrity_check")" = ok ] || unsound=1
        done
    done
    expect shim_sqlite_keeps_acknowledged_rows test $lost = 0
    expect shim_sqlite_has_no_open_transaction test $beyond = 0
    expect shim_sqlite_is_sound test $unsound = 0

    # The same with synchronous=OFF must lose rows: else the shim proves nothing.
    fresh
    (cd "$w/d" && {
        echo "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; CREATE TABLE t(n); INSERT INTO t VALUES(1);"
        echo ".shell kill -9 \$PPID"
    } | BERINGIA_FAULTFS=$w/control LD_PRELOAD=$tools/faultfs.so sqlite3 a.db > /dev/null 2>&1) 2> /dev/null
    cut_power
    have=$(sqlite3 "$w/d/a.db" "SELECT count(*) FROM t" 2> /dev/null)
    expect shim_sqlite_without_fsync_loses_rows test "${have:-0}" = 0
else
    echo "skip shim_sqlite: no sqlite3"
fi

# ---- Clocks
bent() { BERINGIA_CLOCK=$w/clock LD_PRELOAD=$tools/clock.so "$python" - "$w/clock"; }
echo "realtime 86400 1" > "$w/clock"
out=$(( $(bent <<< 'import time; print(int(time.time()))') - $(date +%s) ))
expect shim_clock_a_day_ahead test "$out" -ge 86399 -a "$out" -le 86405
out=$(bent << 'PY'
import os, sys, time
def write(text):
    with open(sys.argv[1], "w") as f: f.write(text)
import select
def lap(clock):
    a = time.clock_gettime(clock); select.select([], [], [], 0.3)
    return time.clock_gettime(clock) - a
def slept(rate):
    write("monotonic 0 %g\n" % rate); select.select([], [], [], 0.01); a = os.times().elapsed
    time.sleep(0.4)    # until a moment of the bent clock
    return os.times().elapsed - a
write("realtime 0 1\nmonotonic 0 4\nboottime 0 0.2\n"); time.sleep(0.01); time.time()
fast, slow = lap(time.CLOCK_MONOTONIC), lap(time.CLOCK_BOOTTIME)
before = time.time()
write("realtime -86400 1\nmonotonic 0 1\nboottime 0 1\n"); time.sleep(0.01)
jump = time.time() - before
quick, long = slept(4), slept(0.5)
print(1.1 < fast < 2.6, 0.05 < slow < 0.2, -86401 < jump < -86398, quick < 0.3, long > 0.7)
PY
)
echo "# $out"; expect shim_clock_rates_and_jumps test "$out" = "True True True True True"
exit $failed
