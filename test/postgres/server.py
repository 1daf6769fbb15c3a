# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server of one's own: Debian's binaries, a scratch directory, a unix socket, nothing of the machine's.

It refuses to run as root, so as root it is started as the user `postgres` or `nobody`. It keeps fsync on: a journal
wants a server that keeps what it acknowledged."""
import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time

PORT = 54329


def binaries():
    """The directory of the newest initdb; None where there is none."""
    found = glob.glob("/usr/lib/postgresql/*/bin/initdb")
    if found:
        return os.path.dirname(max(found, key=lambda p: [int(x) for x in p.split("/")[4].split(".") if x.isdigit()]))
    on_path = shutil.which("initdb")
    return os.path.dirname(on_path) if on_path else None


def plain_user():
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            pass
    raise RuntimeError("neither a user postgres nor nobody")


class Server:
    def __init__(self, settings=()):
        self.bin = binaries()
        self.dir = tempfile.mkdtemp(prefix="brg-postgres-")
        self.data, self.log = os.path.join(self.dir, "data"), os.path.join(self.dir, "server.log")
        self.settings = settings
        self.process = None
        self.who = {}
        if os.geteuid() == 0:
            user = plain_user()
            os.chown(self.dir, user.pw_uid, user.pw_gid)
            self.who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chmod(self.dir, 0o755)
        self.run("initdb", "-D", self.data, "-U", "brg", "-A", "trust", "--no-locale", "-E", "UTF8", "--no-sync")
        with open(os.path.join(self.data, "pg_hba.conf"), "w", encoding="utf-8") as f:
            f.write("local all secret scram-sha-256\nlocal all all trust\n")

    def run(self, name, *words):
        done = subprocess.run([os.path.join(self.bin, name), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, cwd=self.dir, check=False,
                              env={"PATH": "/usr/bin:/bin", "HOME": self.dir, "LC_ALL": "C"}, **self.who)
        if done.returncode != 0:
            raise RuntimeError(f"{name} ended with {done.returncode}: {done.stdout[-400:]}")
        return done.stdout

    def url(self, schema, user="brg", more=""):
        return f"postgresql://{user}@/postgres?host={self.dir}&port={PORT}{more}&schema={schema}"

    def base(self):
        """Without a schema: the unit tests choose their own."""
        return f"postgresql://brg@/postgres?host={self.dir}&port={PORT}"

    def launch(self):
        """Begins to start; a server that was killed may have to wait for what is left of it."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [os.path.join(self.bin, "postgres"), "-D", self.data, "-k", self.dir, "-p", str(PORT), "-c", "listen_addresses=",
                 *[w for s in self.settings for w in ("-c", s)]], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.dir,
                env={"PATH": "/usr/bin:/bin", "HOME": self.dir, "LC_ALL": "C"}, **self.who)

    def start(self, seconds=300):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process is None or self.process.poll() is not None:
                self.launch()
            if self.ready():
                return self
            time.sleep(0.05)
        raise RuntimeError(f"the server did not start within {seconds} s; see {self.log}")

    def ready(self):
        return subprocess.run([os.path.join(self.bin, "pg_isready"), "-q", "-h", self.dir, "-p", str(PORT)],
                              check=False).returncode == 0

    def back(self):
        """Is it there again? Begins it where it is not; called until it says yes."""
        if self.process is None or self.process.poll() is not None:
            self.launch()
        return self.ready()

    def end_sessions(self):
        """All that hubs have; a server that does not take this connection has none."""
        try:
            self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'beringia/%'")
        except RuntimeError:
            pass

    def stop(self, number=signal.SIGINT):
        """SIGINT: it ends all sessions in order (fast); SIGQUIT: at once, recovery follows; SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(timeout=300)

    def sql(self, text):
        return self.run("psql", "-h", self.dir, "-p", str(PORT), "-U", "brg", "-d", "postgres", "-X", "-A", "-t", "-v",
                        "ON_ERROR_STOP=1", "-c", text).strip()

    def remove(self):
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.dir, ignore_errors=True)
