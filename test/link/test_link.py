# SPDX-License-Identifier: Apache-2.0
"""What the link promises, measured: delay, rate, cut and heal, reset, many connections.

Each test starts one link before one small server that echoes, sinks or sends, as the first byte of
a connection asks. Lower bounds of time are strict; upper bounds leave room for a busy machine.
"""
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time

LINK = sys.argv[1]
failed = False
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def serve(connection):
    """'e': echo; 'k': sink, answers the count at the end; 's' + 8 digits of MB: send."""
    try:
        with connection:
            kind = connection.recv(1)
            if kind == b"e":
                while data := connection.recv(65536):
                    connection.sendall(data)
            elif kind == b"k":
                total, buffer = 0, bytearray(1 << 20)
                while n := connection.recv_into(buffer):
                    total += n
                connection.sendall(b"%d" % total)
            elif kind == b"s":
                left, block = int(connection.recv(8)) * 1000000, bytes(1 << 20)
                while left > 0:
                    left -= connection.send(block[:min(left, len(block))])
    except OSError:
        pass


def server():
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)

    def loop():
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
    threading.Thread(target=loop, daemon=True).start()
    return listener.getsockname()[1]


class Link:
    def __init__(self, port, *options):
        self.process = subprocess.Popen([LINK, "--to", "127.0.0.1:%d" % port, *options],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])

    def tell(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def stats(self):
        self.tell("stats")
        return self.parse(self.process.stdout.readline())

    @staticmethod
    def parse(line):
        return {k: int(v) for k, v in (word.split("=") for word in line.split())}

    def connect(self, kind):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.sendall(kind)
        return s

    def end(self):
        self.process.terminate()
        return self.parse(self.process.communicate(timeout=10)[0].strip().splitlines()[-1])


def expect(name, condition, figures=""):
    global failed
    print("%s link_%s" % ("ok" if condition else "FAIL", name))
    if figures:
        print("# link_%s: %s" % (name, figures), flush=True)
    failed = failed or not condition


def round_trip(s, data=b"x"):
    begin = time.monotonic()
    s.sendall(data)
    got = 0
    while got < len(data):
        got += len(s.recv(65536))
    return time.monotonic() - begin


def sink(link, megabytes):
    """Sends so much up; the seconds from the first byte at the other end to the last."""
    s = link.connect(b"k")
    begin, block = time.monotonic(), bytes(1000000)
    for _ in range(megabytes):
        s.sendall(block)
    s.shutdown(socket.SHUT_WR)
    answer = s.recv(100)
    return time.monotonic() - begin, int(answer or 0)


def fetch(link, megabytes, connections=1):
    """Fetches so much over some connections at a time; seconds from the first byte on."""
    first, last, total = [], [], []

    def one():
        s, buffer, n = link.connect(b"s%08d" % (megabytes // connections)), bytearray(1 << 20), 0
        while got := s.recv_into(buffer):
            if n == 0:
                first.append(time.monotonic())
            n += got
        last.append(time.monotonic())
        total.append(n)
    threads = [threading.Thread(target=one) for _ in range(connections)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return max(last) - min(first), sum(total)


def test_delay(port):
    link = Link(port, "--delay", "45ms")
    began = time.monotonic()  # before the connection: what this process is late by must not count as time saved
    s = link.connect(b"e")
    round_trip(s)
    cold = time.monotonic() - began
    trips = sorted(round_trip(s) for _ in range(9))
    expect("delay", trips[0] >= 0.090 and trips[4] < 0.100, "rtt min %.1f median %.1f ms" % (trips[0] * 1e3, trips[4] * 1e3))
    expect("a_new_connection_waits_a_round_trip", cold >= 0.179, "%.1f ms" % (cold * 1e3))
    link.tell("delay 10ms")
    link.tell("jitter 20ms")
    trips = [round_trip(s) for _ in range(20)]
    expect("jitter", min(trips) >= 0.020 and max(trips) - min(trips) > 0.005 and max(trips) < 0.120)
    link.end()


def measured(name, low, high, once):
    """once gives Mbit/s. Up to three tries: others may use the machine, and a late first byte
    makes a rate look high as a late last one makes it look low."""
    for _ in range(3):
        rate = once()
        if low <= rate <= high:
            break
    expect(name, low <= rate <= high, "%.1f Mbit/s, allowed %d to %d" % (rate, low, high))


def test_rate(port):
    def down(megabytes, connections=1):
        seconds, n = fetch(link, megabytes, connections)
        assert n == megabytes * 1000000
        return n * 8 / seconds / 1e6

    def up():
        seconds, n = sink(link, 40)
        assert n == 40000000
        return n * 8 / (seconds - 0.08) / 1e6
    link = Link(port, "--delay", "20ms", "--rate", "100mbit")
    measured("rate", 85, 115, lambda: down(40))
    measured("rate_up", 85, 115, up)
    measured("rate_is_shared", 85, 115, lambda: down(40, 8))
    link.tell("rate 40mbit down")
    measured("rate_changes", 34, 46, lambda: down(15))
    link.end()
    link = Link(port, "--delay", "45ms", "--rate", "1gbit")
    measured("gigabit_over_90_ms", 800, 1150, lambda: down(400))
    stats = link.end()
    expect("memory_is_rate_times_delay", stats["queued_peak"] < 24e6, "peak %.1f MB" % (stats["queued_peak"] / 1e6))


def silent(s, seconds):
    s.settimeout(seconds)
    try:
        s.recv(1)
        return False
    except TimeoutError:
        return True
    finally:
        s.settimeout(30)


def test_cut(port):
    path = os.path.join(tempfile.mkdtemp(), "control")
    link = Link(port, "--delay", "5ms", "--control", path)
    s = link.connect(b"e")
    round_trip(s)
    control = socket.socket(socket.AF_UNIX)
    control.connect(path)

    def ask(text):
        control.sendall(text.encode() + b"\n")
        return control.recv(1000)
    for which in ("up", "down", "both"):
        known = ask("cut " + which) == b"ok\n"
        s.sendall(b"y")
        quiet = silent(s, 0.4)
        ask("heal")
        begin = time.monotonic()
        expect("cut_%s_and_heal" % which, known and quiet and s.recv(1) == b"y" and time.monotonic() - begin < 0.3)
    ask("stall 500ms")
    expect("stall", round_trip(s) > 0.45)
    expect("unknown_command_is_named", ask("cat x").startswith(b"unknown"))
    link.end()
    link = Link(port, "--delay", "5ms", "--rate", "100mbit")
    s = link.connect(b"s%08d" % 20)
    n = len(s.recv(65536))
    link.tell("cut up")
    link.stats()
    s.settimeout(0.7)
    before = n
    try:
        while got := len(s.recv(65536)):
            n += got
    except TimeoutError:
        pass
    # A window, what was under way, and what lay in the sockets.
    expect("one_way_cut_stalls_the_other_way_too", n - before < 2000000, "%d bytes passed" % (n - before))
    link.tell("heal")
    s.settimeout(30)
    while got := len(s.recv(65536)):
        n += got
    expect("nothing_is_lost_by_a_cut", n == 20000000)
    link.end()


def is_reset(s):
    try:
        while s.recv(65536):
            pass
        return False
    except ConnectionResetError:
        return True


def test_reset(port):
    link = Link(port, "--delay", "5ms", "--rate", "100mbit")
    pair = [link.connect(b"e") for _ in range(2)]
    [round_trip(s) for s in pair]
    link.tell("reset one")
    link.stats()
    alive = 0
    for s in pair:
        try:
            round_trip(s)
            alive += 1
        except (ConnectionError, BrokenPipeError):
            pass
    expect("reset_one_of_two", alive == 1)
    s = link.connect(b"s%08d" % 50)
    s.recv(1)
    link.tell("reset all")
    expect("reset_all_mid_body", is_reset(s))
    link.tell("reset after 3000000")
    s = link.connect(b"s%08d" % 50)
    n = 0
    try:
        while got := len(s.recv(65536)):
            n += got
    except ConnectionResetError:
        pass
    # What the receiver had not read yet goes with the reset.
    expect("reset_after_bytes", n <= 3000000 and link.stats()["open"] == 0, "%d bytes read" % n)
    link.tell("refuse on")
    link.stats()
    try:
        refused = is_reset(link.connect(b"e"))
    except ConnectionError:
        refused = True
    expect("refuse", refused)
    link.tell("refuse off")
    link.stats()
    s = link.connect(b"k")
    s.sendall(bytes(1000))
    s.shutdown(socket.SHUT_WR)
    expect("half_close_travels", s.recv(10) == b"1000")
    stats = link.end()
    expect("counters", stats["accepted"] == 6 and stats["resets"] >= 4 and stats["refused"] == 1, str(stats))


def test_many(port):
    link = Link(port, "--delay", "20ms", "--rate", "1gbit")
    begin = time.monotonic()
    many = [link.connect(b"e") for _ in range(1000)]
    for s in many:
        s.sendall(b"z" * 1000)
    good = 0
    for s in many:
        n = 0
        while n < 1000 and (got := len(s.recv(1000))):
            n += got
        good += n == 1000
    seconds = time.monotonic() - begin
    [s.close() for s in many]
    stats = link.end()
    expect("thousand_connections", good == 1000 and stats["bytes_up"] == 1001000, "%.2f s" % seconds)


def test_loss(port):
    link = Link(port, "--delay", "10ms", "--loss-stall", "0.2", "--seed", "5")
    s = link.connect(b"e")
    round_trip(s)
    trips = [round_trip(s) for _ in range(60)]
    slow = sum(t > 0.038 for t in trips)
    expect("loss_stalls", 8 <= slow <= 45 and link.end()["lost"] >= 8, "%d of 60 round trips were late" % slow)


port = server()
for test in (test_delay, test_rate, test_cut, test_reset, test_many, test_loss):
    test(port)
sys.stdout.flush()
os._exit(1 if failed else 0)    # the server's threads wait for ever
