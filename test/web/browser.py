# SPDX-License-Identifier: Apache-2.0
"""A Chromium in a test's hands: its DevTools protocol through a pipe (file descriptors 3 and 4, JSON ended by NUL), so that
neither a port nor a library is needed. Every page keeps what it asked for and what it complained about."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


class Failure(Exception):
    pass


class Browser:
    def __init__(self, program, *more):
        self.home = tempfile.mkdtemp(prefix="brg-chromium-")
        down_r, down_w = os.pipe()
        up_r, up_w = os.pipe()

        def place():  # the browser reads 3 and writes 4
            a, b = os.dup(down_r), os.dup(up_w)
            os.dup2(a, 3)
            os.dup2(b, 4)
        words = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--no-first-run", "--disable-gpu",
                 "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--hide-scrollbars", "--force-device-scale-factor=1", f"--user-data-dir={self.home}", *more, "about:blank"]
        with open(os.path.join(self.home, "log"), "wb") as log:
            self.process = subprocess.Popen([program, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            preexec_fn=place, close_fds=False, env={**os.environ, "HOME": self.home})
        os.close(down_r)
        os.close(up_w)
        self.down, self.up, self.rest, self.count = down_w, up_r, b"", 0
        self.answers, self.pages = {}, {}

    def close(self):
        try:
            self.call("Browser.close")
        except Failure:
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.down)
        os.close(self.up)
        shutil.rmtree(self.home, ignore_errors=True)

    def pump(self, seconds):
        """Takes what the browser says, for at most so long; True where something came."""
        ready, _, _ = select.select([self.up], [], [], seconds)
        if not ready:
            return False
        data = os.read(self.up, 1 << 20)
        if not data:
            raise Failure("the browser ended")
        *messages, self.rest = (self.rest + data).split(b"\0")
        for m in map(json.loads, messages):
            if "id" in m:
                self.answers[m["id"]] = m
            elif m.get("sessionId") in self.pages:
                self.pages[m["sessionId"]].event(m["method"], m["params"])
        return True

    def send(self, method, session=None, **params):
        self.count += 1
        m = {"id": self.count, "method": method, "params": params, **({"sessionId": session} if session else {})}
        data = json.dumps(m).encode() + b"\0"
        while data:
            data = data[os.write(self.down, data):]
        return self.count

    def call(self, method, session=None, **params):
        number = self.send(method, session, **params)
        until = time.monotonic() + 60
        while number not in self.answers:
            if time.monotonic() > until:
                raise Failure(f"{method}: no answer in 60 s")
            self.pump(0.5)
        answer = self.answers.pop(number)
        if "error" in answer:
            raise Failure(f"{method}: {answer['error']}")
        return answer["result"]

    def page(self):
        # A window of its own: of the tabs of one window all but one are hidden, and the dashboard draws nothing there.
        target = self.call("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session)


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.asked, self.complaints = [], []  # urls; what a person would see in red in the console
        browser.pages[session] = self
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def event(self, method, p):
        if method == "Network.requestWillBeSent":
            self.asked.append(p["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(p["exceptionDetails"].get("exception", {}).get("description") or p["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(a.get("value", a.get("description"))) for a in p["args"]))
        elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.complaints.append(p["entry"]["text"] + " " + p["entry"].get("url", ""))

    def look(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url):
        self.call("Page.navigate", url=url)

    def js(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise Failure(f"{expression}: {r['exceptionDetails'].get('exception', r['exceptionDetails'])}")
        return r["result"].get("value")

    def wait(self, what, expression, seconds=60):
        until = time.monotonic() + seconds
        while True:
            try:
                value, why = self.js(expression), ""
            except Failure as e:  # the page is on its way to another document
                value, why = None, f" ({e})"
            if value:
                return value
            if time.monotonic() > until:
                raise Failure(f"waited {seconds} s for {what}; the page says: {self.complaints[-3:]}{why}")
            self.browser.pump(0.1)

    def key(self, key):
        code = {"ArrowLeft": 37, "ArrowRight": 39, "Tab": 9}.get(key, ord(key.upper()[0]))
        text = key if len(key) == 1 else ""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def shot(self, path):
        """The whole page, however long."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))
