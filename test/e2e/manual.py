#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# release only
# timeout: 200
"""What people see of the program before they run it: the manual's pages, and what the Tab key offers in bash and zsh. All
of it is made from the texts of --help. What goes wrong: an option is added and its text forgotten, or the other way round; a
text has a form that is read wrongly; a page is no good mdoc; a variable of the environment is read that no page names. What
must hold: the options that a command hands to getopt_long, those of its completions and those of its page are the same, and
the same ones take values; every command is offered and has a page; mandoc finds no fault in any page."""
import os
import re
import shutil
import subprocess
import sys

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BERINGIA = os.environ.get("BERINGIA") or os.path.join(ROOT, "build", "release", "beringia")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-manual-e2e"
HERE = os.path.join(ROOT, "test", "e2e", "manual")
HIDDEN = {"agent": {"local-job"}}  # how an agent without a scheduler starts its own job; not for people
OWN_PARSER = {"sim"}               # reads its arguments itself; its text alone is looked at
FAILED = []


def say(name, wrong):
    print(f"{'FAIL' if wrong else 'ok'} manual_{name}", flush=True)
    if wrong:
        print("  " + str(wrong).strip().replace("\n", "\n  ")[:1500], flush=True)
        FAILED.append(name)


def run(*words, env=None):
    return subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=dict(os.environ, **(env or {})), timeout=150)


def out(*words, env=None):
    done = run(*words, env=env)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: status {done.returncode}: {done.stderr}")
    return done.stdout


def parsed():
    """command -> {option: takes a value}, as the commands themselves parse them."""
    shim = os.path.join(SCRATCH, "options.so")
    out("gcc", "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", os.path.join(HERE, "options.c"), "-o", shim)
    names = [line.split()[0] for line in out(BERINGIA, "--help").splitlines() if re.match(r"  [a-z]+ +[^-]", line)
             and not line.startswith("  beringia")]
    all_options = {}
    for name in names:
        for words in ([name], [name, "replay"]) if name == "hub" else ([name],):
            text = "" if name in OWN_PARSER else out(BERINGIA, *words, "--help", env={"LD_PRELOAD": shim})
            for line in text.splitlines():
                option, takes = line.split()
                all_options.setdefault(name, {})[option] = takes != "0"
        for hidden in HIDDEN.get(name, ()):
            del all_options[name][hidden]
        all_options.setdefault(name, {})
    return all_options


def bash(script, *words):
    return out("bash", "--norc", "--noprofile", os.path.join(HERE, "complete.bash"), script, "beringia", *words).split()


def in_bash(commands):
    script = os.path.join(SCRATCH, "beringia.bash")
    with open(script, "w", encoding="utf-8") as f:
        f.write(out(BERINGIA, "completion", "bash"))
    offered = set(bash(script, ""))
    say("bash_offers_every_command", set(commands) ^ (offered - {"--help", "--version"}))
    wrong = []
    for name, options in commands.items():
        got = {o[2:] for o in bash(script, name, "--")}
        if name not in OWN_PARSER and got != set(options):
            wrong.append(f"{name}: {sorted(got ^ set(options))}")
    say("bash_offers_every_option", "\n".join(wrong))
    with open(script, encoding="utf-8") as f:
        text = f.read()
    wrong = []
    for name, options in commands.items():
        part = re.search(rf"^    {name}\)\n(.*?)^        ;;", text, re.M | re.S).group(1)
        valued = set(re.findall(r"--([a-z0-9-]+)", (re.search(r"valued='(.*)'", part) or [""])[0]))
        if name not in OWN_PARSER and valued != {o for o, takes in options.items() if takes}:
            wrong.append(f"{name}: {sorted(valued ^ {o for o, takes in options.items() if takes})}")
    say("bash_knows_which_options_take_a_value", "\n".join(wrong))
    cases = {("token", "run", ""): {"create", "list", "revoke", "rotate"}, ("token", "run", "re"): {"revoke"},
             ("tokenizer", "--vocab", "300", "tr"): {"train"}, ("hub", "rep"): {"replay"},
             ("site", "--mpi", ""): {"auto", "yes", "no"}, ("site", "--log-level", "=", "de"): {"debug"},
             ("completion", ""): {"bash", "zsh"}, ("nonsense", "--"): set(), ("", "--"): set()}
    wrong = [f"{' '.join(words)}: {bash(script, *words)} without {wanted}" for words, wanted in cases.items()
             if not wanted <= set(bash(script, *words))]
    say("bash_offers_what_may_follow", "\n".join(wrong))
    return text


def choices(text):
    """Every word that is offered as an option's value stands in that option's text."""
    wrong = []
    for name, part in re.findall(r"^    ([a-z]+)\)\n(.*?)^        ;;", text, re.M | re.S):
        help_text = out(BERINGIA, name, "--help")
        for option, words in re.findall(r'!= --([a-z-]+) \] \|\| choices=\'(.*)\'', part):
            row = re.search(rf"^  --{option} (.*?)(?=^  --|^$)", help_text, re.M | re.S)
            if row is None:  # only in the synopsis, as a word that other commands explain
                continue
            row = row.group(1)
            wrong += [f"{name} --{option}: {w}" for w in words.split() if w not in re.findall(r"[\w-]+", row)]
    say("values_that_are_offered_stand_in_help", "\n".join(wrong))


def in_zsh(commands):
    if not shutil.which("zsh"):
        print("skip manual_zsh_offers_the_same: no zsh (scripts/deps installs it)")
        return
    folder = os.path.join(SCRATCH, "zfunc")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "_beringia"), "w", encoding="utf-8") as f:
        f.write(out(BERINGIA, "completion", "zsh"))

    lines = ["beringia ", "beringia token run "] + [f"beringia {name} --" for name in commands]
    got = {line: set() for line in lines}
    for said in out("zsh", "-f", os.path.join(HERE, "complete.zsh"), folder, *lines,
                    env={"SAID": os.path.join(SCRATCH, "said"), "TERM": "dumb"}).splitlines():
        number, word = said.split(" ", 1)
        got[lines[int(number)]].add(word)
    say("zsh_offers_every_command", set(commands) - got["beringia "])
    say("zsh_offers_what_may_follow", {"create", "list", "revoke", "rotate"} - got["beringia token run "])
    wrong = []
    for name, options in commands.items():
        names = {o.strip("-").rstrip("=") for o in got[f"beringia {name} --"]}
        if name not in OWN_PARSER and names != set(options):
            wrong.append(f"{name}: {sorted(names ^ set(options))}")
    say("zsh_offers_every_option", "\n".join(wrong))


def pages(commands):
    folder = os.path.join(SCRATCH, "man")
    out(BERINGIA, "manual", "--out", folder)
    shutil.copytree(os.path.join(ROOT, "man", "man7"), os.path.join(folder, "man7"), dirs_exist_ok=True)
    files = [os.path.join(where, n) for where, _, names in os.walk(folder) for n in names]
    wanted = {f"beringia-{name}.1" for name in commands} | {
        "beringia.1", "beringia-hub-replay.1", "beringia-run.yaml.5", "beringia-site.yaml.5", "beringia-scenario.yaml.5",
        "beringia.7"}
    say("every_command_has_a_page", wanted ^ {os.path.basename(f) for f in files})
    faults = [line for line in run("mandoc", "-T", "lint", "-W", "all", *files).stdout.splitlines()
              if "referenced manual not found" not in line]  # of this machine's manual, which is not ours
    say("pages_are_well_formed", "\n".join(faults))
    known = {tuple(os.path.basename(f).rsplit(".", 1)) for f in files} | {("libberingia", "3")}
    wrong = []
    for page in files:
        with open(page, encoding="utf-8") as f:
            wrong += [f"{page}: {x}" for x in re.findall(r"\.?Xr (\S+) (\d)", f.read()) if x not in known]
    say("pages_refer_to_pages_that_are_there", "\n".join(wrong))
    wrong = []
    for name, options in commands.items():
        shown = "".join(out("mandoc", "-T", "ascii", "-O", "width=400", os.path.join(folder, "man1", page))
                        for page in sorted(os.listdir(os.path.join(folder, "man1")))
                        if page in (f"beringia-{name}.1", f"beringia-{name}-replay.1"))
        shown = re.sub(".\b", "", shown)
        wrong += [f"{name}: no --{o}" for o in options
                  if o != "help" and not re.search(rf"(?<![\w-])--{o}(?![\w-])", shown)]
    say("every_option_stands_on_its_page", "\n".join(wrong))
    main = re.sub(".\b", "", out("mandoc", "-T", "ascii", os.path.join(folder, "man1", "beringia.1")))
    sources = [os.path.join(w, n) for w, _, names in os.walk(os.path.join(ROOT, "src")) for n in names if n.endswith(".c")]
    read = set()
    for source in sources:
        with open(source, encoding="utf-8") as f:
            read |= set(re.findall(r'(?:getenv|environment)\("((?:BERINGIA|NO|NOTIFY)_[A-Z_]+)"\)', f.read()))
    say("every_variable_stands_in_the_manual", {v for v in read if v not in main} or (not read and "none was found"))
    table = {}
    with open(os.path.join(ROOT, "src", "hub", "settings.c"), encoding="utf-8") as f:
        table = set(re.findall(r'^    \{"[a-z]+", "([a-z0-9_]+)", CONFIG_', f.read(), re.M))
    shown = re.sub(".\b", "", out("mandoc", "-T", "ascii", os.path.join(folder, "man5", "beringia-run.yaml.5")))
    say("every_setting_stands_in_the_manual", {k for k in table if not re.search(rf"^ +{k}\b", shown, re.M)}
        or (len(table) < 20 and f"only {len(table)} were found"))


def refusals():
    wrong = []
    for words, status in {("completion",): 2, ("completion", "fish"): 2, ("manual", "nonsense"): 2,
                          ("manual", "--out", "/proc/nowhere"): None}.items():
        done = run(BERINGIA, *words)
        if done.returncode == 0 or (status is not None and done.returncode != status) or done.stderr.count("\n") != 1:
            wrong.append(f"{' '.join(words)}: {done.returncode} {done.stderr}")
    say("refuses_in_one_line", "\n".join(wrong))


def main():
    os.makedirs(SCRATCH, exist_ok=True)
    commands = parsed()
    say("commands_are_found", len(commands) < 20 and commands)
    choices(in_bash(commands))
    in_zsh(commands)
    pages(commands)
    refusals()
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
