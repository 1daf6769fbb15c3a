#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A hub under a service manager, played here: a socket named by NOTIFY_SOCKET. What goes wrong: the manager believes that a
hub serves before it does, or lives while it stands still; it does not listen, or names no good socket. What must hold: READY=1
when a request is answered and not before; WATCHDOG=1 again and again, none while the process is stopped; STOPPING=1 at
SIGTERM, and status 0; without a good socket the hub serves all the same; without the variables nothing is said."""
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

BERINGIA, SCRATCH, ROOT = os.environ["BERINGIA"], os.environ["SCRATCH"], os.environ["ROOT"]
FAILED = []


def say(name, good, text=""):
    print(f"{'ok' if good else 'FAIL'} notify_{name}", flush=True)
    if not good:
        print(f"  {text}", flush=True)
        FAILED.append(name)


def path(*words):
    return os.path.join(SCRATCH, *words)


def beringia(*words):
    subprocess.run([BERINGIA, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def hub(**env):
    clean = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")}
    return subprocess.Popen([BERINGIA, "hub", path("run"), "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=dict(clean, **env))


class Manager:
    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(name)
        self.socket.settimeout(60)

    def hear(self, word):
        """Reads until a datagram has `word`; gives all that was read."""
        heard = []
        while word not in (heard[-1].split("\n") if heard else []):
            heard.append(self.socket.recv(4096).decode())
        return heard

    def drain(self):
        self.socket.setblocking(False)
        try:
            while True:
                self.socket.recv(4096)
        except BlockingIOError:
            self.socket.settimeout(60)


def full_life(manager, name, label):
    process = hub(NOTIFY_SOCKET=name, WATCHDOG_USEC="600000")
    heard = manager.hear("READY=1")
    with open(path("run", "hub.json"), encoding="utf-8") as f:
        status = json.load(urllib.request.urlopen(json.load(f)["url"] + "/v1/status", timeout=60))
    say(f"ready_when_it_answers_{label}", "STATUS=serving" in heard[-1] and "head" in status, heard)
    manager.hear("WATCHDOG=1")
    manager.hear("WATCHDOG=1")
    say(f"lives_{label}", True)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # it stands still from here on
    manager.drain()
    manager.socket.settimeout(2)
    try:
        late = manager.socket.recv(4096)
    except TimeoutError:
        late = b""
    manager.socket.settimeout(120)
    say(f"says_nothing_while_it_stands_still_{label}", late == b"", late)
    process.send_signal(signal.SIGCONT)
    manager.hear("WATCHDOG=1")
    process.send_signal(signal.SIGTERM)
    manager.hear("STOPPING=1")
    say(f"stops_in_order_{label}", process.wait(120) == 0, process.returncode)


def serves_without(label, **env):
    process = hub(**env)
    line = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    say(f"serves_{label}", line.startswith("listening on ") and process.returncode == 0
        and ("ev=notify_lost" in errors) == ("NOTIFY_SOCKET" in env), line + errors)


def main():
    beringia("pack", "--out", path("data"), "--seq-len", 32, "--max-samples", 200,
             os.path.join(ROOT, "share", "text", "moby-dick.txt"))
    beringia("init", path("run"), "--model", os.path.join(ROOT, "share", "models", "tiny.json"), "--data", path("data"))
    full_life(Manager(path("socket")), path("socket"), "by_path")
    abstract = f"beringia-notify-{os.getpid()}"
    full_life(Manager("\0" + abstract), "@" + abstract, "by_abstract_name")
    serves_without("without_a_manager")
    serves_without("where_nobody_listens", NOTIFY_SOCKET=path("nobody"))
    serves_without("with_a_bad_name", NOTIFY_SOCKET="relative")
    serves_without("with_a_long_name", NOTIFY_SOCKET="/" + 200 * "x")
    manager = Manager(path("other"))
    process = hub(NOTIFY_SOCKET=path("other"), WATCHDOG_USEC="600000", WATCHDOG_PID="1")
    manager.hear("READY=1")
    process.send_signal(signal.SIGTERM)
    heard = manager.hear("STOPPING=1")
    process.wait(120)
    say("of_another_process_is_not_its_watchdog", not any("WATCHDOG" in h for h in heard), heard)
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
