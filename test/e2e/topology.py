#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Labels, links, `plan --topology`, `plan --scale`. What goes wrong: a document's figures are not the program's; a file that is wrong
half-works; a site's label does not arrive; what was measured is not what the hub shows, or is told under another's name; a plan makes up
what nobody measured. What must hold: docs/scale.md is the output of `plan --scale`, docs/topology.md's answer that of its example; a
wrong file is one line with status 3; after `doctor --links` the hub has the figures, and a plan is made of them."""
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
from cluster import Cluster, Failure, pack_words, wait_for  # noqa: E402
from scenarios import run_scenarios  # noqa: E402

PROGRAM = os.environ.get("BERINGIA") or os.path.join(ROOT, "build", "release", "beringia")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-topology-e2e"
MODEL = os.path.join(ROOT, "share", "models", "tiny.json")


def check(what, good):
    if not good:
        raise Failure(what)


def call(*words, ok=0, env=None):
    p = subprocess.run([PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       env={**os.environ, **(env or {})}, timeout=120, check=False)
    check(f"{' '.join(words)}: status {p.returncode}: {p.stderr}", p.returncode == ok)
    return p.stdout if ok == 0 else p.stderr


def document(name):
    with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as f:
        return f.read()


def topology_scale_document():
    """docs/scale.md has the tables of the program."""
    said = re.search(r"<!-- begin: beringia plan --scale -->\n(.*?)<!-- end -->", document("scale.md"), re.S)
    check("docs/scale.md has no table between its marks", said is not None)
    check("docs/scale.md is not what `beringia plan --scale` prints", said.group(1).strip() == call("plan", "--scale").strip())
    rows = json.loads(call("plan", "--scale", "--json"))["rows"]
    few = {(r["design"], r["parameters"] < 1e9): r for r in rows if r["sites"] == 300}
    check("levels do not save the top's line", few["two levels", True]["top_bytes"] < few["one hub", True]["top_bytes"] / 10)
    wide = json.loads(call("plan", "--scale", "--json", "--set", "hub_rate=1e12", "--set", "merge_rate=1e15",
                           "--set", "disk_rate=1e15"))["rows"]
    check("a wider line changes nothing", any(r["limit"] != o["limit"] for r, o in zip(wide, rows)))
    check("no word of the setting", "weather" in call("plan", "--scale", "--set", "weather=1", ok=3))


def topology_example_of_the_document():
    """docs/topology.md: the file of the example, and the answer that stands below it."""
    text = document("topology.md")
    os.makedirs(SCRATCH, exist_ok=True)
    path = os.path.join(SCRATCH, "links.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(re.search(r"```yaml\n(.*?)```", text, re.S).group(1))
    want = re.search(r"It answers\n\n```\n(.*?)```", text, re.S).group(1)
    got = call("plan", "--topology", path)
    check(f"docs/topology.md is not what the program says:\n{got}", got == want)
    plan = json.loads(call("plan", "--topology", path, "--json"))
    check(f"{plan['levels']} levels", plan["levels"] == 2)
    check("no warning of the settings in use", any("cannot carry" in w for w in plan["warnings"]))


def topology_wrong_files():
    os.makedirs(SCRATCH, exist_ok=True)
    path = os.path.join(SCRATCH, "wrong.yaml")
    for text, word in (("run: {parameters: 5}\n", "site_NAME"), ("run: {parameters: 5}\nsite_a: {up: 3}\n", "both up and down"),
                       ("run: {parameters: 5}\nsite_a: {fabric: Alder}\n", "three words"), ("nonsense\n", "wrong.yaml")):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        said = call("plan", "--topology", path, ok=3)
        check(f"{text!r}: {said}", word in said and said.count("\n") == 1)
    call("plan", "--topology", ok=2)
    call("plan", "--topology", "--issue", path, ok=2)
    call("plan", "--scale", path, ok=2)
    call("plan", "--topology", os.path.join(SCRATCH, "nowhere"), ok=4)
    call("doctor", "--links", "--hub", "http://127.0.0.1:1", ok=2)
    call("doctor", "--hub", "http://127.0.0.1:1", "--fabric", "a", ok=2)
    call("site", "--hub", "http://127.0.0.1:1", "--name", "a", "--data", "x", "--state", os.path.join(SCRATCH, "s"), "--fabric", "A", ok=3)


def topology_on_a_run():
    """Two sites with labels on a real hub: label, figures, plan; then the hub starts again and knows no figures."""
    out = os.path.join(SCRATCH, "run")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    slow = ("--batch", "2", "--threads", "1", "--throttle", "0.5")
    c = Cluster(PROGRAM, out, pack_words(PROGRAM, os.path.join(SCRATCH, "data")), {"a": (*slow, "--fabric", "europe/alder"), "b": slow})
    c.init(MODEL, {"run.epochs": 1000, "outer.steps": 10, "lease.heartbeat": "500ms", "outer.codec": "int4"}, seed=1)
    c.start_hub()
    check("a plan without sites", "none is given" in call("plan", "--topology", c.run_dir, ok=3))
    c.start_site("a")
    c.start_site("b", env={"BERINGIA_FABRIC": "europe/birch"})
    wait_for("both labels", lambda: {s["name"]: s["fabric"] for s in c.get("/v1/status")["sites"]}
             == {"a": "europe/alder", "b": "europe/birch"}, 60, each=c.check_processes)
    plan = json.loads(call("plan", "--topology", c.run_dir, "--json"))
    check(f"figures that nobody measured: {plan}", plan["levels"] == 0 and "doctor --links" in plan["plans"][0]["missing"])
    for name, label in (("a", "europe/alder"), ("b", "europe/birch")):
        said = call("doctor", "--links", "--hub", c.url, "--name", name, "--fabric", label)
        check(said, re.search(r"ok +links +" + name + r" in " + label + r": [\d.]+ ms, up [\d.]+ MB/s", said))
    call("doctor", "--links", "--hub", c.url, "--name", "eu", "--fabric", "europe", "--as-hub")
    links = {k["from"]: k for k in c.get("/v1/status")["links"]}
    check(f"the links are {links}", set(links) == {"a", "b", "eu"} and links["eu"]["hub"] and not links["a"]["hub"])
    check(f"figures: {links}", all(k["rtt_ms"] > 0 and k["up_mb_s"] > 0 and k["down_mb_s"] > 0 for k in links.values()))

    # a heartbeat without a step in its time knows no speed: the next one does
    def planned(*more):
        return json.loads(call("plan", "--topology", c.run_dir, *more, "--json"))
    wait_for("a plan with one level", lambda: planned()["levels"] == 1, 60, each=c.check_processes, pause=0.2)
    plan = planned()
    check(f"settings in use: {plan}", plan["steps_total"] == 0 or plan["steps_total"] > 100)
    check(plan["plans"][1]["missing"], "inside fabric europe" in plan["plans"][1]["missing"])
    # the same hub as that of the region too: then two levels can be judged
    wait_for("two levels to be judged", lambda: planned("europe=" + c.url)["plans"][1]["possible"], 60, each=c.check_processes, pause=0.2)
    call("doctor", "--links", "--hub", c.url, "--name", "b", "--fabric", "europe/birch")
    check("a party twice", len(c.get("/v1/status")["links"]) == 3)
    c.stop_hub()
    c.start_hub()
    check("figures of an earlier process", c.get("/v1/status")["links"] == [])


if __name__ == "__main__":
    sys.exit(run_scenarios(globals(), "topology_"))
