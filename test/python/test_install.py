# SPDX-License-Identifier: Apache-2.0
# timeout: 400
"""`pip install ./python` as a user does it: into a virtual environment, without a network, from the source tree. What
must hold: nothing is fetched, the tree stays as it was, the package brings its library along, a loop of the examples
trains with it from another directory, and pip takes all of it away again."""
import json
import os
import subprocess
import sys

import kit
from kit import begin, finish, say, start

CLEAN = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "BERINGIA_LIBRARY", "PYTHONHOME")}
NO_NETWORK = {**CLEAN, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "http_proxy": "http://127.0.0.1:9",
              "https_proxy": "http://127.0.0.1:9"}


def call(*words, env=None, cwd=None):
    done = subprocess.run([str(w) for w in words], env=env or CLEAN, cwd=cwd or kit.SCRATCH, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def tree():
    found = []
    for path, _, names in os.walk(os.path.join(kit.ROOT, "python")):
        found += [os.path.join(path, n) for n in names if "__pycache__" not in path]
    return sorted(found)


def pip_installs_from_the_source_tree(keep):
    os.makedirs(kit.SCRATCH, exist_ok=True)
    venv, before = os.path.join(kit.SCRATCH, "venv"), tree()
    code, text = call(sys.executable, "-m", "venv", "--system-site-packages", venv)
    if code != 0:
        say("install_venv", False, text)
        return
    python = os.path.join(venv, "bin", "python")
    code, text = call(python, "-m", "pip", "install", os.path.join(kit.ROOT, "python"), env=NO_NETWORK)
    say("install_by_pip_without_a_network", code == 0 and "Successfully installed beringia" in text, text)
    say("install_leaves_the_tree_as_it_was", tree() == before, set(tree()) ^ set(before))
    code, text = call(python, "-c", "import beringia, beringia.torch; print(beringia._lib._name, beringia.library_version())")
    say("install_brings_its_library_along", code == 0 and text.startswith(venv) and "libberingia.so.0" in text, text)
    code, text = call(python, "-m", "pip", "show", "-f", "beringia", env=NO_NETWORK)
    say("install_pip_knows_its_files", code == 0 and "beringia/torch.py" in text and "beringia/_sharded.py" in text, text)
    c = begin("installed", kit.pack(110000))
    keep(c)
    here = os.path.join(kit.ROOT, "examples", "pytorch")
    start(c, "j", kit.TINY, c.data, script=os.path.join(here, "joined.py"), python=python,
          env={"PYTHONPATH": "", "BERINGIA_LIBRARY": ""})
    finish(c)
    say("install_the_joined_loop_trains_with_it", True)
    out = os.path.join(c.out, "model")
    c.call("export", c.run_dir, "--out", out)
    nats = json.loads(c.call("eval", c.run_dir, "--data", c.data, "--json"))["nll"]
    code, text = call(python, os.path.join(here, "load.py"), out, c.data)
    got = float(text.split("held-out loss ")[-1]) if "held-out loss " in text else 0.0
    say("install_the_exported_model_loads", code == 0 and abs(got - nats) < 1e-4, f"{text}, eval says {nats}")
    code, text = call(python, "-m", "pip", "uninstall", "-y", "beringia", env=NO_NETWORK)
    gone, _ = call(python, "-c", "import beringia")
    say("install_pip_takes_it_away_again", code == 0 and gone != 0, text)


if __name__ == "__main__":
    raise SystemExit(kit.main([pip_installs_from_the_source_tree]))
