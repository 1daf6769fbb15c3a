#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A forward proxy as facilities have them: CONNECT alone, with a password where one is wanted, and with their habits.

    test/net/proxy.py --listen HOST:PORT [--user NAME:PASSWORD] [--idle SECONDS [--hole]] [--log FILE]

--idle   ends a tunnel when nothing moved for so long
--hole   does not even close it then: what is sent later is lost, and neither end hears of it
Prints "listening on HOST:PORT". FILE gets a line of JSON for each request: what was asked, what was answered, whether an
Authorization header was seen (it must not be: that is the hub's), and one for each tunnel that was cut."""
import argparse
import base64
import json
import select
import socket
import socketserver
import sys
import threading
import time

LOCK = threading.Lock()


class Handler(socketserver.StreamRequestHandler):
    def log_line(self, **what):
        if self.server.words.log:
            with LOCK, open(self.server.words.log, "a", encoding="utf-8") as f:
                f.write(json.dumps(what) + "\n")

    def answer(self, code, text, *headers):
        page = f"<html><body><h1>{code} {text}</h1></body></html>".encode()
        head = [f"HTTP/1.1 {code} {text}", "Content-Type: text/html", f"Content-Length: {len(page)}", "Connection: close", *headers]
        self.wfile.write("\r\n".join(head).encode() + b"\r\n\r\n" + page)

    def handle(self):
        first = self.rfile.readline(4096).decode("latin-1").split()
        headers = {}
        while True:
            line = self.rfile.readline(8192).decode("latin-1").strip()
            if not line:
                break
            key, _, value = line.partition(":")
            headers[key.lower()] = value.strip()
        if len(first) != 3:
            return
        seen = {"method": first[0], "target": first[1], "authorization": "authorization" in headers}
        user = self.server.words.user
        if user and headers.get("proxy-authorization") != "Basic " + base64.b64encode(user.encode()).decode():
            self.log_line(**seen, answer=407)
            self.answer(407, "Proxy Authentication Required", 'Proxy-Authenticate: Basic realm="facility"')
            return
        if first[0] != "CONNECT":
            self.log_line(**seen, answer=403)
            self.answer(403, "Forbidden by policy")
            return
        host, _, port = first[1].rpartition(":")
        try:
            there = socket.create_connection((host.strip("[]"), int(port)), timeout=10)
        except (OSError, ValueError):
            self.log_line(**seen, answer=502)
            self.answer(502, "Bad Gateway")
            return
        self.log_line(**seen, answer=200)
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.carry(there)

    def carry(self, there):
        here, idle = self.connection, self.server.words.idle
        there.settimeout(None)
        moved = time.monotonic()
        while True:
            ready, _, _ = select.select([here, there], [], [], 0.1)
            if idle and not ready and time.monotonic() - moved > idle:
                self.log_line(cut=idle)
                while self.server.words.hole:
                    time.sleep(3600)  # both stay open for as long as this process lives
                break
            for s in ready:
                try:
                    data = s.recv(65536)
                    if not data:
                        there.close()
                        return
                    (there if s is here else here).sendall(data)
                except OSError:
                    there.close()
                    return
                moved = time.monotonic()
        there.close()


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--listen", default="127.0.0.1:0")
    p.add_argument("--user")
    p.add_argument("--idle", type=float, default=0)
    p.add_argument("--hole", action="store_true")
    p.add_argument("--log")
    words = p.parse_args()
    host, _, port = words.listen.rpartition(":")
    with Server((host, int(port)), Handler) as server:
        server.words = words
        print("listening on %s:%d" % server.server_address[:2], flush=True)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
