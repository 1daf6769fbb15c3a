# SPDX-License-Identifier: Apache-2.0
"""A bucket as the place where hub and sites meet that do not reach each other. The stories, with real processes and a real Swift;
test/s3/run tells them. Sites say --hub bucket:..., and what they are given beside it is credentials of the store and a token."""
import glob
import json
import os
import re
import subprocess
import time

import stories as s
import swift
from cluster import Failure, wait_for

PROGRAM = s.PROGRAM
check = s.check


class Met(s.Run):
    """A run whose sites come through the bucket alone. inside: words before the hub's and each site's program."""

    def __init__(self, name, store, sites=("a", "b"), settings=None, inside=None, env=None, secret=swift.SECRET):
        self.store, self.inside = store, inside or {}
        wanted = {"run.epochs": 1, "outer.steps": 10, "lease.samples_min": 40, "lease.samples_max": 160, "lease.ttl": "60s", "blobs.mailbox": "true", "blobs.mailbox_idle": "1s",
                  "blobs.endpoint": store.endpoint, "blobs.price_reads": "0.0004", **(settings or {})}
        if store.ca:
            wanted["blobs.ca"] = store.ca
        super().__init__(name, sites=sites, settings=wanted, secret=secret, env=env)
        self.env.update(AWS_ENDPOINT_URL=store.endpoint, AWS_SHARED_CREDENTIALS_FILE=self.keys)
        for word in [w for w in self.env if w.lower().endswith("_proxy") or w.startswith("BERINGIA_TOKEN")]:
            self.env.pop(word)
        if store.ca:
            self.env["BERINGIA_S3_CA"] = store.ca
        self.address = f"bucket:s3://{swift.BUCKET}/runs/{self.run_id()}"
        for site in sites:
            self.token(site)
        self.token("viewer", "viewer")

    def token(self, name, scope="site"):
        path = os.path.join(self.out, f"{name}.token")
        self.call("token", self.run_dir, "create", "--scope", scope, "--out", path, *(["--name", name] if scope in ("site", "agent") else []))
        return path

    def serve(self, env=None):
        """The hub listens on its own loopback; where that is in another namespace nobody here gets there, and RUN's files tell."""
        with open(os.path.join(self.out, "hub.log"), "ab") as log, open(os.path.join(self.out, "hub.says"), "wb") as said:
            self.hub = subprocess.Popen([*self.inside.get("hub", []), PROGRAM, "hub", self.run_dir, "--listen", "127.0.0.1:0"],
                                        stdout=said, stderr=log, env=dict(self.env, **(env or {})))
        wait_for("the hub to listen", lambda: "mailbox " in self.hub_says() or self.hub.poll() is not None, 60)
        check("the hub runs", self.hub.poll() is None, self.said("hub")[-600:])
        check("it says where sites find it", f"mailbox {self.address}\n" in self.hub_says(), self.hub_says())

    def hub_says(self):
        with open(os.path.join(self.out, "hub.says"), encoding="utf-8") as f:
            return f.read()

    def status(self):
        done = subprocess.run([*self.inside.get("hub", []), PROGRAM, "status", self.run_dir, "--json"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, env=self.env, check=False)
        try:
            return json.loads(done.stdout)
        except ValueError:
            return None

    def mailbox(self):
        status = self.status()
        return status["mailbox"] if status else {}

    def start_site(self, name, env=None):
        with open(os.path.join(self.out, f"site-{name}.log"), "ab") as log:
            self.sites[name] = subprocess.Popen(
                [*self.inside.get(name, []), PROGRAM, "site", "--hub", self.address, "--token", os.path.join(self.out, f"{name}.token"),
                 "--name", name, "--data", self.data, "--state", os.path.join(self.out, f"site-{name}"), *map(str, self.site_words[name])],
                stdout=log, stderr=log, env=dict(self.env, **(env or {})))

    def kill_site(self, name):
        p = self.sites.pop(name)
        p.kill()
        p.wait()

    def versions(self, count, seconds=300):
        def there():
            status = self.status()
            return status and (status["head"] >= count or status["complete"])
        wait_for(f"version {count}", there, seconds, self.check_processes, 0.2)

    def letters(self, box=""):
        return self.store.names(self.key(f"mail/{box}"))

    def look_for_secrets(self):
        super().look_for_secrets()
        for path in glob.glob(os.path.join(self.out, "*.token")):
            with open(path, encoding="ascii") as f:
                token = f.read().strip()
            for log in glob.glob(os.path.join(self.out, "*.log")):
                with open(log, encoding="utf-8", errors="replace") as f:
                    check(f"the token of {os.path.basename(path)} is not in {log}", token not in f.read())

    def exchanges(self):
        """What all sites' processes that ended in order say they asked of the store."""
        text = "".join(self.said(f"site-{x}") for x in self.site_words)
        rows = re.findall(r"ev=mail exchanges=(\d+) puts=(\d+) gets=(\d+) deletes=(\d+)", text)
        return [sum(int(r[i]) for r in rows) for i in range(4)]


def plain():
    """On one machine: all goes well, and the sites' addresses of the hub are the bucket's."""
    x = Met("met", s.store)
    try:
        x.serve()
        began = time.monotonic()
        for site in x.site_words:
            x.start_site(site)
        status = x.finish()
        hours = (time.monotonic() - began) / 3600
        m = status["mailbox"]
        check("what was asked was answered", m["requests"] > 20 and m["answers"] >= m["requests"] - m["stale"] - 2, m)
        check("nothing was refused, or failed", m["refused"] == 0 and m["failures"] == 0, m)
        check("weights went by URLs alone", status["uploads_bytes"] == 0, status["uploads_bytes"])
        check("requests have a price", abs(m["cost"] - m["writes"] * 5e-6 - m["reads"] * 4e-7) < 1e-9 and m["lists"] > 0, m)
        check("nobody's letter is left but of those who ended", len(x.letters("req/")) <= 4 and len(x.letters("ans/")) <= 4, x.letters())
        asked = x.exchanges()
        check("sites say what they asked", asked[0] > 20, asked)
        s.figures["mail_exchanges"] = asked[0]
        s.figures["mail_gets_each"] = f"{asked[2] / asked[0]:.1f}"
        s.figures["mail_lists_h_busy"] = int(m["lists"] / hours)
        s.figures["mail_kb_each"] = f"{(m['bytes_in'] + m['bytes_out']) / 1000 / m['requests']:.1f}"
    finally:
        x.clean()


# ---- nobody reaches anybody -----------------------------------------------------------------------------------
TAG = f"brg{os.getpid() % 100000}"
STORE_IP, PEERS = "10.78.0.1", ("hub", "a", "b", "here")


def ip(*words, ok=True):
    done = subprocess.run(["ip", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    check(f"ip {' '.join(words)}", done.returncode == 0 or not ok, done.stderr.strip())


def space(peer):
    return f"{TAG}{peer}"


def within(peer):
    return ["ip", "netns", "exec", space(peer)]


def address(peer):
    return f"10.78.{PEERS.index(peer) + 1}.2"


def network():
    """The store's namespace in the middle, with a cable to each; it forwards nothing, and each peer has a way to its address alone.
    This process has a cable too, to look into the bucket."""
    for name in ("store", *PEERS[:3]):
        ip("netns", "add", space(name))
        ip("-n", space(name), "link", "set", "lo", "up")
    ip("-n", space("store"), "addr", "add", f"{STORE_IP}/32", "dev", "lo")
    subprocess.run([*within("store"), "sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward"], check=True)
    for n, peer in enumerate(PEERS, 1):
        here = peer == "here"
        ip("link", "add", f"{TAG}s{n}", "netns", space("store"), "type", "veth", "peer", "name", f"{TAG}p{n}",
           *([] if here else ["netns", space(peer)]))
        ip("-n", space("store"), "addr", "add", f"10.78.{n}.1/30", "dev", f"{TAG}s{n}")
        ip("-n", space("store"), "link", "set", f"{TAG}s{n}", "up")
        on = [] if here else ["-n", space(peer)]
        ip(*on, "addr", "add", f"{address(peer)}/30", "dev", f"{TAG}p{n}")
        ip(*on, "link", "set", f"{TAG}p{n}", "up")
        ip(*on, "route", "add", f"{STORE_IP}/32", "via", f"10.78.{n}.1")


def network_away():
    for name in ("store", *PEERS[:3]):  # their cables go with them, this one's too
        ip("netns", "del", space(name), ok=False)


def reaches(peer, host, port):
    """Does a connection come about, from that namespace? (words, or "" where it does)"""
    text = f"import socket; socket.create_connection(('{host}', {port}), timeout=5).close()"
    done = subprocess.run([*within(peer), "python3", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout.strip().splitlines()[-1] if done.returncode else ""


def apart(x, store):
    """Each reaches the store, and no other: not the hub's port, not an open one of any other's."""
    hub = x.hub_says().split()[2].rsplit(":", 1)[1]
    for peer in PEERS[:3]:
        check(f"{peer} reaches the store", reaches(peer, STORE_IP, store.ports["proxy"]) == "", reaches(peer, STORE_IP, store.ports["proxy"]))
        for other in PEERS[:3]:
            if other == peer:
                continue
            with subprocess.Popen([*within(other), "python3", "-c",
                                   "import socket, sys; s = socket.create_server(('0.0.0.0', 7001)); print(1, flush=True); sys.stdin.read()"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE) as open_port:
                open_port.stdout.readline()
                check(f"{other} itself gets to that port", reaches(other, address(other), 7001) == "")
                said = reaches(peer, address(other), 7001)
                check(f"{peer} does not reach {other}", "unreachable" in said, said or "it does")
                open_port.stdin.close()
        if peer != "hub":
            check(f"{peer} does not reach the hub", reaches(peer, address("hub"), hub) != "")


def certificate(where):
    """(the store's certificate, its key, the CA)"""
    run = os.path.join(where, "ca-run")
    data = s.pack_words(PROGRAM, os.path.join(s.SCRATCH, "data"))
    subprocess.run([PROGRAM, "init", run, "--model", "tiny", "--data", data], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([PROGRAM, "tls", run, "create", "--name", STORE_IP], check=True, stdout=subprocess.DEVNULL)
    return [os.path.join(run, "tls", name) for name in ("hub.pem", "hub-key.pem", "ca.pem")]


def gone_and_back(x, store, site):
    """A site, the hub and the store die, one after the other; each time the run goes on."""
    x.versions(1)
    x.kill_site(site)
    x.versions(2)
    x.start_site(site)
    x.versions(3)
    x.kill_hub()
    # It has taken a request away, and dies before it asked, or before the answer is put: to the site a connection that was cut.
    for point in ("hub.mailbox_taken:9", "hub.mailbox_asked:9"):
        x.serve({"BERINGIA_FAULT": point})
        wait_for("the hub to end at the named point", lambda: x.hub.poll() is not None, 240, None, 0.1)
    x.serve()
    x.versions(4)
    check("the run is not over", not x.complete(), x.status())
    store.kill()
    try:
        wait_for("the hub to say so", lambda: x.alarm("mailbox_down"), 120, x.check_processes, 0.2)
        check("the hub's log too", "ev=mailbox_down" in x.said("hub"), "")
    finally:
        store.start(120)
    began = time.monotonic()
    wait_for("the hub to look into it again", lambda: x.mailbox().get("up"), 120, x.check_processes, 0.2)
    s.figures["mail_store_back_s"] = f"{time.monotonic() - began:.1f}"
    x.versions(6)


def namespaces():
    """Hub and two sites, each in a network namespace of its own, reach the object store and not each other."""
    if os.geteuid() != 0:
        print("skip s3_namespaces: network namespaces want root")
        s.figures["mail_namespaces"] = "skipped"
        return
    where = os.path.join(s.SCRATCH, "apart")
    os.makedirs(where)
    x = None
    try:
        network()
        cert, key, ca = certificate(where)
        store = swift.Store(STORE_IP, space("store"), (cert, key), ca)
        try:
            store.start(120)
            x = Met("apart", store, settings={"run.epochs": 3, "lease.samples_max": 40}, inside={peer: within(peer) for peer in PEERS[:3]})
            x.serve()
            apart(x, store)
            began = time.monotonic()
            for site in x.site_words:
                x.start_site(site)
            gone_and_back(x, store, "a")
            status = x.finish()
            hours = (time.monotonic() - began) / 3600
            m, asked = status["mailbox"], x.exchanges()
            books = x.audit(blobs=True)
            check("nothing is lost or doubled", books["lost"] == 0 and books["doubled"] == 0, json.dumps(books)[:300])
            check("no weights came to the hub itself", status["uploads_bytes"] == 0, status["uploads_bytes"])
            s.figures.update(mail_namespaces="trained", mail_lost=books["lost"], mail_doubled=books["doubled"], mail_versions=status["head"],
                             mail_moved_mb=f"{x.moved() / 1e6:.1f}", mail_requests_h=int(m["requests"] / hours),
                             mail_through_mb=f"{(m['bytes_in'] + m['bytes_out']) / 1e6:.2f}", mail_site_exchanges=asked[0])
        finally:
            if x:
                x.clean()
            store.remove()
    finally:
        network_away()


# ---- what is wrong -----------------------------------------------------------------------------------------------
def refused_site(x, says, env=None, address=None, token="a"):
    """A site that cannot come in ends by itself, with status 3 and one line that says what to look at."""
    done = subprocess.run([PROGRAM, "site", "--hub", address or x.address, "--token", os.path.join(x.out, f"{token}.token"), "--name", "a",
                           "--data", x.data, "--state", os.path.join(x.out, f"refused-{abs(hash(says))}"), "--batch", "4", "--threads", "1"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**x.env, **(env or {})}, timeout=120, check=False)
    last = done.stdout.strip().splitlines()[-1]
    check(f"it says \"{says}\", with status 3", done.returncode == 3 and says in last, (done.returncode, done.stdout[-600:]))
    check("no secret in it", swift.SECRET not in done.stdout and "not-the-secret" not in done.stdout, done.stdout[-300:])


def raw_request(x, target, token, method="GET", age_ms=20000, body=b""):
    """Puts one request there as any program could; its id."""
    made[0] += 1
    name = f"{made[0]:032x}"
    text = f"BRGSPOOL2\nmethod {method}\ntarget {target}\ntimeout_ms {age_ms}\ntoken {token}\noffset 0\nbytes 0\nbody {len(body)}\n\n"
    x.store.put(x.key(f"mail/req/{name}"), text.encode() + body)
    return name


def raw_answer(x, name, seconds=60):
    """(HTTP status, body)"""
    wait_for(f"the answer to {name}", lambda: name in str(list(x.letters("ans/"))), seconds, x.check_processes, 0.2)
    head, body = x.store.get(x.key(f"mail/ans/{name}")).split(b"\n\n", 1)
    return int(re.search(rb"^http (\d+)$", head, re.M).group(1)), body


made = [0]


def wrong():
    """Keys, buckets and addresses that are none; things in the mailbox that are no requests; requests that nobody waits for; twice the
    same; tokens of another scope. The hub lives, counts them, and goes on for others."""
    x = Met("met-wrong", s.store, sites=("a",))
    try:
        with open(os.path.join(x.out, "a.token"), encoding="ascii") as f:
            token = f.read().strip()
        with open(os.path.join(x.out, "viewer.token"), encoding="ascii") as f:
            viewer = f.read().strip()
        # Left by a site that was killed while there was no hub, and by nobody.
        old = raw_request(x, "/v1/status", token, age_ms=1)
        junk = {"mail/req/../up": None, "mail/req/UPPER": b"x", "mail/req/" + "z" * 32: b"x", "mail/req/a b&c": b"x", f"mail/req/{'0' * 31}g": b"",
                f"mail/req/{'f' * 32}": b"\0" * 400000, f"mail/req/{'e' * 32}": b"BRGSPOOL1\nnonsense", f"mail/req/{'d' * 32}": b""}
        for name, body in junk.items():
            if body is not None:
                x.store.put(x.key(name), body)
        time.sleep(7)  # older than its timeout_ms and MAIL_SLACK_S, by the store's clock, which is whole seconds
        x.serve()
        wait_for("all of it to be gone", lambda: not x.letters("req/"), 60, x.check_processes, 0.2)
        wait_for("it to be counted", lambda: x.mailbox().get("refused", 0) == 7, 30, x.check_processes, 0.2)
        check("what is old is not asked", x.mailbox()["stale"] == 1 and old not in str(x.letters("ans/")), x.mailbox())
        check("each is told", x.said("hub").count("ev=mailbox_refused") == 7 and x.said("hub").count("ev=mailbox_stale") == 1, x.said("hub")[-800:])
        # Answers as over HTTP.
        status, body = raw_answer(x, raw_request(x, "/v1/status", viewer))
        check("a viewer's status", status == 200 and json.loads(body)["run"] == x.run_id(), (status, body[:100]))
        first = raw_request(x, "/v1/run", token)
        check("a run", raw_answer(x, first)[0] == 200)
        check("no token", raw_answer(x, raw_request(x, "/v1/status", ""))[0] == 401)
        check("a viewer trains nothing", raw_answer(x, raw_request(x, "/v1/join", viewer, "POST", body=b"{}"))[0] == 403)
        check("a body that is no message", raw_answer(x, raw_request(x, "/v1/join", token, "POST", body=b"{}"))[0] == 400)
        check("no such path", raw_answer(x, raw_request(x, "/v1/nothing", token))[0] == 404)
        # Weights do not come that way, whole or not.
        status, body = raw_answer(x, raw_request(x, "/v1/versions/0/checkpoint", token))
        check("a checkpoint without store=1 does not fit, or is small", status in (0, 200), status)
        status, body = raw_answer(x, raw_request(x, "/v1/versions/0/checkpoint?store=1", token))
        check("with it there is a URL", status == 303 and b"X-Amz-Signature" in body, status)
        # One after the other.
        before = x.mailbox()["requests"]
        for _ in range(3):
            raw_answer(x, raw_request(x, "/v1/run", token))
        check("it goes on", x.mailbox()["requests"] >= before + 3, x.mailbox())
        wrong_keys = os.path.join(x.out, "wrong-keys")
        with open(wrong_keys, "w", encoding="utf-8", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(f"[default]\naws_access_key_id = {swift.KEY}\naws_secret_access_key = not-the-secret\n")
        refused_site(x, "the secret", {"AWS_SHARED_CREDENTIALS_FILE": wrong_keys})
        refused_site(x, "bucket", address=x.address.replace("//beringia/", "//nosuchbucket/"))
        refused_site(x, "AWS_ENDPOINT_URL", {"AWS_ENDPOINT_URL": ""})
        refused_site(x, "readable on the way", {"AWS_ENDPOINT_URL": "http://s3.example.org"})
        refused_site(x, "set the clock", s.bent(x, -3600))
        doctor = [PROGRAM, "doctor", "--hub", x.address, "--token", os.path.join(x.out, "a.token")]
        done = subprocess.run(doctor, stdout=subprocess.PIPE, text=True, env=x.env, timeout=120, check=False)
        check("the doctor gets there", done.returncode == 0 and re.search(r"^ok +hub .*version 0", done.stdout, re.M), done.stdout)
        done = subprocess.run(doctor, stdout=subprocess.PIPE, text=True, env={**x.env, "AWS_SHARED_CREDENTIALS_FILE": wrong_keys}, timeout=120, check=False)
        check("and says what is wrong", done.returncode == 3 and re.search(r"^FAIL +bucket .*the secret", done.stdout, re.M), done.stdout)
        # Nothing of that hurt: the site trains.
        x.start_site("a")
        x.versions(2)
        x.finish()
        s.figures["mail_wrong"] = "told"
    finally:
        x.clean()


# ---- not sites alone -----------------------------------------------------------------------------------------------
SITE_YAML = """site: {name: west, hub: %s, state: %s, token: %s, scheduler: local}
job: {script: %s, drain: 30s}
budget: {node_hours: 1}
shape_small: {time: 1h}
"""


def others():
    """A region whose parent is met in the bucket (it takes updates and the ledger from there, and hands in what its sites did), and an
    agent that reports there."""
    x = Met("met-others", s.store, sites=("r",), settings={"outer.down_codec": "int8", "blobs.part": "64k"})
    region = s.Cluster(PROGRAM, os.path.join(x.out, "region"), x.data, {"s1": ["--batch", "4", "--threads", "1", "--timeout", "3s"]}, x.env)
    os.makedirs(region.out)
    try:
        region.init("tiny", {"outer.steps": 10, "lease.samples_min": 40, "lease.samples_max": 80, "lease.ttl": "20s", "outer.grace": "300ms"})
        x.serve()
        agent = x.token("west", "agent")
        job = os.path.join(x.out, "job.sh")
        with open(job, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\nexit 0\n")
        os.chmod(job, 0o755)
        yaml = os.path.join(x.out, "site.yaml")
        with open(yaml, "w", encoding="utf-8") as f:
            f.write(SITE_YAML % (f'"{x.address}"', os.path.join(x.out, "west"), agent, job))
        done = subprocess.run([PROGRAM, "agent", "--site", yaml, "--once"], env=x.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=120, check=False)
        check("the agent reports", done.returncode == 0, done.stdout[-500:])
        names = [f["name"] for f in x.status()["facilities"]]
        check("the hub knows the facility", "west" in names, names)
        with open(os.path.join(region.out, "hub.log"), "ab") as log:
            region.hub = subprocess.Popen([PROGRAM, "hub", region.run_dir, "--listen", "127.0.0.1:0", "--parent", x.address, "--region", "r",
                                           "--parent-token", os.path.join(x.out, "r.token"), "--parent-rounds", "2"],
                                          stdout=subprocess.DEVNULL, stderr=log, env=x.env)
        path = os.path.join(region.run_dir, "hub.json")
        wait_for("the region to listen", lambda: os.path.exists(path) or region.hub.poll() is not None, 60)
        check("the region runs", region.hub.poll() is None, x.said("region/hub")[-500:])
        with open(path, encoding="utf-8") as f:
            region.url = json.load(f)["url"]
        region.start_site("s1")

        def alive():
            x.check_processes()
            region.check_processes()
        wait_for("the parent to be complete", x.complete, 400, alive, 0.5)
        wait_for("the region to know", region.complete, 120, None, 0.2)
        region.wait_sites()
        region.stop_hub()
        x.stop_hub()
        books = x.json("audit", x.run_dir, "--recursive", region.run_dir, "--json", ok=(0, 17))
        check("the audit of both is clean", books["good"] and books["lost"] == 0 and books["doubled"] == 0, json.dumps(books)[:400])
        x.look_for_secrets()
        s.figures["mail_region"] = "trained"
    finally:
        region.clean()
        x.clean()
