# SPDX-License-Identifier: Apache-2.0
"""An object store of one's own: Debian's OpenStack Swift with s3api, which verifies signatures as AWS does, in a scratch
directory on one address, nothing of the machine's. And a client of it that shares nothing with the program's."""
import datetime
import hashlib
import hmac
import http.client
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
import xml.etree.ElementTree

PACKAGES = ("swift-proxy", "swift-account", "swift-container", "swift-object", "memcached")
KEY, SECRET = "test:tester", "testing-5ecret-of-the-store"
BUCKET = "beringia"
SERVERS = ("account", "container", "object", "proxy")
PORTS = (*SERVERS, "memcache")

COMMON = """[DEFAULT]
bind_ip = {ip}
bind_port = {port}
workers = 0
user = {user}
swift_dir = {dir}/etc
log_level = ERROR
log_address = {dir}/no-syslog
"""
STORAGE = """devices = {dir}/d
mount_check = false
disable_fallocate = true
[pipeline:main]
pipeline = {name}-server
[app:{name}-server]
use = egg:swift#{name}
"""
PROXY = """{tls}
[pipeline:main]
pipeline = catch_errors cache s3api tempauth bulk slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true
error_suppression_interval = 0.1
error_suppression_limit = 1000000
node_timeout = 30
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcache}
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
s3_acl = false
min_segment_size = 1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = {secret} .admin
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
minimum_segment_size = 1
[filter:dlo]
use = egg:swift#dlo
"""


def there():
    return all(shutil.which(f"swift-{name}-server") for name in SERVERS) and shutil.which("swift-ring-builder") and shutil.which("memcached")


def install():
    """As root, or with a sudo that asks nothing; the services of the packages are not started."""
    if there():
        return
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    words = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
    if subprocess.run(words, check=False).returncode != 0 or not there():
        sys.exit(f"test/s3/run: there is no Swift, and it could not be installed: sudo apt-get install {' '.join(PACKAGES)}")


def free_ports(ip, count):
    held = [socket.socket() for _ in range(count)]
    for s in held:
        s.bind((ip, 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


class Store:
    """ip: where it listens; netns: in which network namespace, or None; tls: (certificate, key) files, or None."""

    def __init__(self, ip="127.0.0.1", netns=None, tls=None, ca=None):
        self.dir = tempfile.mkdtemp(prefix="brg-swift-")
        self.ip, self.netns, self.ca, self.tls = ip, netns, ca, tls
        self.before = ["ip", "netns", "exec", netns] if netns else []
        self.processes = []
        # Ports of another namespace cannot be asked for here, and are all free there.
        self.ports = dict(zip(PORTS, range(6201, 6206) if netns else free_ports(ip, len(PORTS))))
        self.endpoint = f"{'https' if tls else 'http'}://{ip}:{self.ports['proxy']}"
        for name in ("etc", "d/d1"):
            os.makedirs(os.path.join(self.dir, name))
        self.write("swift.conf", "[swift-hash]\nswift_hash_path_suffix = s\nswift_hash_path_prefix = p\n[storage-policy:0]\nname = gold\ndefault = yes\n")
        for name in SERVERS:
            proxy = name == "proxy"
            # The three others speak with the proxy alone, over loopback.
            words = {"ip": ip if proxy else "127.0.0.1", "port": self.ports[name], "dir": self.dir, "name": name, "secret": SECRET, "memcache": self.ports["memcache"],
                     "user": "root" if os.geteuid() == 0 else os.environ.get("USER", "swift"),
                     "tls": f"cert_file = {tls[0]}\nkey_file = {tls[1]}" if tls else ""}
            self.write(f"{name}.conf", (COMMON + (PROXY if proxy else STORAGE)).format(**words))
            if not proxy:
                builder = os.path.join(self.dir, "etc", f"{name}.builder")
                self.call("swift-ring-builder", builder, "create", "4", "1", "1")
                self.call("swift-ring-builder", builder, "add", f"r1z1-127.0.0.1:{self.ports[name]}/d1", "1")
                self.call("swift-ring-builder", builder, "rebalance")

    def write(self, name, text):
        with open(os.path.join(self.dir, "etc", name), "w", encoding="utf-8") as f:
            f.write(text)

    def call(self, *words):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode > 1:  # 1 is a warning
            raise RuntimeError(f"{words[0]} {words[2]} ended with {done.returncode}: {done.stdout[-400:]}")

    # ---- processes -----------------------------------------------------------------------------------
    def start(self, seconds=60):
        with open(os.path.join(self.dir, "swift.log"), "ab") as log:
            words = [["memcached", "-l", "127.0.0.1", "-p", str(self.ports["memcache"]), "-u", "root", "-m", "16"]]
            words += [[f"swift-{name}-server", os.path.join(self.dir, "etc", f"{name}.conf")] for name in SERVERS]
            for w in words:
                self.processes.append(subprocess.Popen(
                    [*self.before, *w], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.dir, env={"PATH": os.environ["PATH"], "HOME": self.dir}))
        until = time.monotonic() + seconds
        said = "nothing"
        while time.monotonic() < until:
            for p in self.processes:
                if p.poll() is not None:
                    raise RuntimeError(f"a server of Swift ended with {p.returncode}; {self.dir}/swift.log")
            try:
                status, body = self.ask("PUT", f"/{BUCKET}")
                if status in (200, 409):
                    return self
                said = f"{status} {body[:200]}"
            except OSError as e:
                said = str(e)
            time.sleep(0.1)
        raise RuntimeError(f"Swift does not serve: {said}; {self.dir}/swift.log")

    def kill(self):
        """All at once, as when its machine dies."""
        for p in self.processes:
            p.kill()
        for p in self.processes:
            p.wait()
        self.processes = []

    def remove(self):
        self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    # ---- a client ------------------------------------------------------------------------------------
    def ask(self, method, path, query="", body=b"", headers=None):
        """One request with a signature in its header: (status, body). Only where this process reaches it."""
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        host = self.endpoint.split("//")[1]
        digest = hashlib.sha256(body).hexdigest()
        sent = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": now, **(headers or {})}
        names = ";".join(sorted(sent))
        canonical = "\n".join([method, urllib.parse.quote(path), query, *[f"{k}:{sent[k]}" for k in sorted(sent)], "", names, digest])
        scope = f"{now[:8]}/us-east-1/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = ("AWS4" + SECRET).encode()
        for word in (*scope.split("/"), text):
            key = hmac.new(key, word.encode(), hashlib.sha256).digest()
        sent["Authorization"] = f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        if self.tls:
            c = http.client.HTTPSConnection(self.ip, self.ports["proxy"], timeout=30, context=ssl.create_default_context(cafile=self.ca))
        else:
            c = http.client.HTTPConnection(self.ip, self.ports["proxy"], timeout=30)
        try:
            c.request(method, urllib.parse.quote(path) + ("?" + query if query else ""), body, sent)
            answer = c.getresponse()
            return answer.status, answer.read()
        finally:
            c.close()

    def names(self, prefix=""):
        """Keys and sizes."""
        status, body = self.ask("GET", f"/{BUCKET}", f"list-type=2&prefix={urllib.parse.quote(prefix, '')}")
        if status != 200:
            raise RuntimeError(f"the list: {status} {body[:300]}")
        space = "{http://s3.amazonaws.com/doc/2006-03-01/}"
        return {x.find(space + "Key").text: int(x.find(space + "Size").text)
                for x in xml.etree.ElementTree.fromstring(body).iter(space + "Contents")}

    def get(self, key):
        status, body = self.ask("GET", f"/{BUCKET}/{key}")
        if status != 200:
            raise RuntimeError(f"{key}: {status} {body[:300]}")
        return body

    def put(self, key, body, headers=None):
        status, said = self.ask("PUT", f"/{BUCKET}/{key}", "", body, headers)
        if status != 200:
            raise RuntimeError(f"{key}: {status} {said[:300]}")
