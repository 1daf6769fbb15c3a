#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 280
"""The journal on a PostgreSQL server: what of test/postgres is short, where a server is installed. Its package is none of scripts/deps
(it is large, and only `make test-postgres` needs it); without it these tests are skipped.

What can go wrong: a COMMIT whose answer is lost is done twice or forgotten, two hubs write, a run does not survive its move from a
file to the server and back, a password stands where everybody reads it."""
import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "test", "postgres"))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
import hubs  # noqa: E402,F401
import stories as s  # noqa: E402
import server as postgres  # noqa: E402
from scenarios import run_scenarios, tsan_is_too_slow  # noqa: E402


def postgres_store_on_a_server():
    s.units(os.path.join(ROOT, os.environ["B"]), "_J")


def postgres_standby_takes_over():
    s.takeover(1)


def postgres_server_goes_and_comes():
    s.outage(signal.SIGKILL, "killed")


def postgres_moves_both_ways():
    s.migration()


def postgres_password_is_nowhere():
    s.secrets()


def main():
    why = None if postgres.binaries() else "no PostgreSQL server here; make test-postgres installs one"
    why = why or tsan_is_too_slow()
    if not why:
        s.server = postgres.Server().start()
    try:
        return run_scenarios(globals(), "postgres_", why)
    finally:
        if s.server:
            s.server.remove()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
