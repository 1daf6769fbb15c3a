# SPDX-License-Identifier: Apache-2.0
"""What the tests of packages stand on: bare Debian systems by debootstrap, commands in them, the blocks of docs/install.md."""
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
from cluster import Failure, wait_for  # noqa: E402,F401

WORK = os.path.join(ROOT, "build", "package")
VERSION = re.search(r'BERINGIA_VERSION "(.*)"',
                    open(os.path.join(ROOT, "src", "base", "version.h"), encoding="utf-8").read()).group(1)
FAILED, FIGURES = [], {}


def say(name, good, text=""):
    print(f"{'ok' if good else 'FAIL'} package_{name}", flush=True)
    if not good:
        print("  " + str(text).strip()[-3000:].replace("\n", "\n  "), flush=True)
        FAILED.append(name)
    return good


def run(words, env=None, timeout=1800, **more):
    """Ends with both outputs as text in stdout; never raises for a status."""
    return subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=env, timeout=timeout, errors="replace", **more)


def out(words, **more):
    done = run(words, **more)
    if done.returncode != 0:
        raise Failure(f"`{' '.join(map(str, words))}` ended with {done.returncode}:\n{done.stdout[-2500:]}")
    return done.stdout


def need(*packages):
    out([os.path.join(ROOT, "packaging", "need"), *packages], cwd=ROOT)


def blocks():
    """name -> the commands of the block that `<!-- run: name -->` stands above."""
    with open(os.path.join(ROOT, "docs", "install.md"), encoding="utf-8") as f:
        text = f.read()
    found = dict(re.findall(r"<!-- run: ([a-z-]+) -->\n```sh\n(.*?)```", text, re.S))
    if text.count("<!-- run: ") != len(found):
        raise Failure("docs/install.md: a block's mark has no block, or two have one name")
    unmarked = len(re.findall(r"^```sh", text, re.M)) - len(found)
    if unmarked != 1:  # Spack's, which the page says
        raise Failure(f"docs/install.md: {unmarked} blocks of commands without a mark; only Spack's is not run")
    return found


def shell(script, **more):
    return run(["bash", "-eu", "-o", "pipefail", "-c", script], **more)


# ---- Bare systems ------------------------------------------------------------------------------------------------
def mirror():
    lines = out(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]).split()
    if not lines:
        raise Failure("this machine's apt knows no Debian mirror")
    return lines[0]


class System:
    """A Debian of its own in a folder, made once and copied for each test."""

    def __init__(self, release, name, include=()):
        self.path = os.path.join(WORK, name)
        cached = os.path.join(WORK, "cache", release)
        if not os.path.exists(os.path.join(cached, "ready")):
            need("debootstrap")
            shutil.rmtree(cached, ignore_errors=True)
            os.makedirs(cached)
            began = time.monotonic()
            words = ["debootstrap", "--variant=minbase"] + ([f"--include={','.join(include)}"] if include else [])
            out([*words, release, cached, mirror()])
            for part in ("var/cache/apt/archives", "usr/share/doc", "usr/share/locale"):
                shutil.rmtree(os.path.join(cached, part), ignore_errors=True)
                os.makedirs(os.path.join(cached, part))
            print(f"# debootstrap of {release}: {time.monotonic() - began:.0f} s", flush=True)
            open(os.path.join(cached, "ready"), "w", encoding="utf-8").close()
        self.remove()
        out(["cp", "-a", "--reflink=auto", cached, self.path])
        for name in ("resolv.conf", "hosts"):
            shutil.copy(os.path.join("/etc", name), os.path.join(self.path, "etc", name))

    def at(self, *words):
        return os.path.join(self.path, *words)

    def words(self, script, user=None, home="/root", net=None):
        """A command line that runs `script` inside: a PID and mount namespace of its own, ended with its parent."""
        who = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        return [*(["nsenter", f"--net=/proc/{net}/ns/net"] if net else []),
                "unshare", "--mount", "--pid", "--fork", "--kill-child", f"--mount-proc={self.at('proc')}",
                "chroot", self.path, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"HOME={home}", "TERM=dumb",
                "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
                # Its first process stays root's: one that changes its user forgets that it is to end with its parent.
                "sh", "-c", '"$@"; exit $?', "sh", *who, "bash", "-eu", "-o", "pipefail", "-c",
                f"cd {home}; {script}"]

    def shell(self, script, timeout=1800, **more):
        return run(self.words(script, **more), timeout=timeout)

    def out(self, script, **more):
        done = self.shell(script, **more)
        if done.returncode != 0:
            raise Failure(f"in {os.path.basename(self.path)}: `{script}` ended with {done.returncode}:\n{done.stdout[-2500:]}")
        return done.stdout

    def remove(self):
        if os.path.exists(self.path):
            out(["rm", "-rf", "--one-file-system", self.path])


class Net:
    """A network namespace with nothing but a loopback: port numbers of the documents are free there."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 100000"],
                                       stdout=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "up\n":
            raise Failure("no network namespace could be made (as root?)")
        self.pid = self.holder.pid

    def words(self, words):
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", *map(str, words)]

    def close(self):
        self.holder.kill()
        self.holder.wait()


class Booted:
    """A System with systemd as its first process, in namespaces of its own."""

    def __init__(self, system):
        need("systemd-container")
        self.log = open(system.path + ".console", "w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            ["systemd-nspawn", "--quiet", f"--directory={system.path}", "--boot", "--register=no", "--keep-unit",
             "--private-network", "--kill-signal=SIGRTMIN+3", "--console=pipe"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        wait_for("systemd's process", self.find, 60)
        wait_for("systemd to be up", lambda: self.state() in ("running", "degraded"), 240, self.alive, pause=0.3)

    def find(self):
        self.alive()
        # nspawn's first child is not yet the system's first process.
        self.pid = next(iter(run(["pgrep", "-x", "-P", str(self.process.pid), "systemd"]).stdout.split()), None)
        return self.pid is not None

    def alive(self):
        if self.process.poll() is not None:
            self.log.seek(0)
            raise Failure(f"systemd-nspawn ended with {self.process.returncode}:\n{self.log.read()[-2500:]}")

    def words(self, script):
        return ["nsenter", "--target", self.pid, "--all", "--root", "env", "-i",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb", "LANG=C.UTF-8", "SYSTEMD_PAGER=",
                "bash", "-eu", "-o", "pipefail", "-c", f"cd /root; {script}"]

    def shell(self, script, timeout=600):
        return run(self.words(script), timeout=timeout)

    def out(self, script):
        done = self.shell(script)
        if done.returncode != 0:
            raise Failure(f"in the booted system: `{script}` ended with {done.returncode}:\n{done.stdout[-2500:]}")
        return done.stdout

    def state(self):
        return run(self.words("systemctl is-system-running || true")).stdout.strip()

    def close(self):
        if self.process.poll() is None:
            run(self.words("systemctl --no-block poweroff"))
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
