// SPDX-License-Identifier: Apache-2.0
// The dashboard: history by four requests, then one stream of statuses. It shows what the hub says and decides
// nothing; each panel is drawn from the last status and the history.
import * as api from "./api.js";
import { $ } from "./dom.js";
import { Lanes } from "./lanes.js";
import { Loss } from "./loss.js";
import * as panels from "./panels.js";
import { Rounds } from "./rounds.js";

const ROUNDS_MOST = 20000, HISTORY_EVERY_MS = 5000;
const lanes = new Lanes(), rounds = new Rounds(), loss = new Loss();
const all = new Map(); // version -> what /v1/rounds says of it
let heldout = [], jobs = [], kept = [], weights = true, status = null, receivedAt = 0, historyUpTo = 0, loadedTo = -1, historyAt = -Infinity, away = null;

const passed = () => (performance.now() - receivedAt) / 1000; // since the last status
const now = () => status.wall + passed();

// The head's ancestry: what a rollback left is not on it.
function branch() {
  const list = [];
  for (let v = all.get(status.head); v; v = v.version === v.parent ? null : all.get(v.parent)) {
    list.push(v);
    if (list.length > all.size) break;
  }
  return list.reverse();
}

// ---- What the hub keeps --------------------------------------------------------------------------------
let loading = null, again = false;
function history() { // one at a time, and once more where something came meanwhile
  if (loading) { again = true; return; }
  const wait = Math.max(historyAt + HISTORY_EVERY_MS - performance.now(), 0);
  loading = new Promise((done) => setTimeout(done, wait)).then(load).catch(() => { again = true; }).finally(() => {
    loading = null;
    historyAt = performance.now();
    if (again) { again = false; history(); }
  });
}

async function load() {
  const timeline = await api.get("v1/timeline" + (historyUpTo ? "?since=" + (historyUpTo - 1) : ""));
  lanes.load(timeline);
  rounds.load(timeline);
  jobs = timeline.jobs.map((j) => { // a hub that started again has forgotten the first promise
    const before = jobs.find((o) => o.facility === j.facility && o.order === j.order && o.job === j.job);
    return before?.estimate && !j.estimate ? { ...j, estimate: before.estimate, estimated_at: before.estimated_at } : j;
  });
  historyUpTo = timeline.now;
  heldout = (await api.get("v1/heldout")).heldout;
  ({ versions: kept, weights } = await api.get("v1/versions"));
  // A status has the last 20 versions; what lies between them and those that are here is asked for.
  if (loadedTo < 0 || (status.versions.length && status.versions[0].version > loadedTo + 1))
    for (const v of await api.rounds(loadedTo + 1, ROUNDS_MOST)) all.set(v.version, v);
  loadedTo = Math.max(loadedTo, status.head);
  panels.versions(kept, heldout, weights);
  loss.show(branch(), heldout);
  show();
}

// ---- Showing -------------------------------------------------------------------------------------------
function show() {
  if (!status || document.hidden) return;
  panels.summary(status);
  panels.alarms(away ? [away, ...status.alarms] : status.alarms);
  panels.ledger(status);
  tick();
}

function tick() { // what moves with the clock alone
  if (!status || document.hidden) return;
  panels.sites(status, passed());
  panels.queue(status, jobs, passed());
  lanes.draw(now());
}

function onStatus(s) {
  const moved = !status || s.head !== status.head || s.term !== status.term;
  const report = (x) => x.facilities.map((f) => f.items).join();
  const reported = status && report(s) !== report(status);
  if (status && s.run !== status.run) { location.reload(); return; }
  status = s;
  receivedAt = performance.now();
  for (const v of s.versions) all.set(v.version, v);
  if (moved) {
    loss.show(branch(), heldout);
    history();
  } else if (reported) {
    history();
  }
  lanes.add(s);
  show();
  document.documentElement.dataset.seq = s.seq_durable;
}

function onState(state, wait) {
  $("link").className = "link " + state;
  $("link").textContent = state === "on" ? "live" : `the hub does not answer; next try in ${wait} s`;
  away = state === "on" ? null : { id: "no_hub", level: "error", subject: "", text: "this page hears nothing from the hub",
    remedy: "is it running, and is the network between fine? What is shown is as it was last" };
  if (state === "off") again = true;
  if (status) {
    show();
    if (state === "on") history(); // what happened in the gap
  }
}

let asked = null;
function onUnauthorized() {
  asked ??= new Promise((done) => {
    $("token-ask").addEventListener("close", () => {
      api.setToken($("token").value.trim());
      $("token").value = "";
      asked = null;
      done();
    }, { once: true });
    $("token-ask").showModal();
  });
  return asked;
}

// ---- Light and dark --------------------------------------------------------------------------------------
const THEMES = ["auto", "light", "dark"];
function theme(name) {
  localStorage.setItem("beringia-theme", name);
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  $("theme").textContent = "theme: " + name;
  loss.make();
  rounds.draw();
  if (status) lanes.draw(now());
}
const turn = () => theme(THEMES[(THEMES.indexOf(localStorage.getItem("beringia-theme") ?? "auto") + 1) % 3]);
$("theme").addEventListener("click", turn);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(localStorage.getItem("beringia-theme") ?? "auto"));
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.altKey || e.metaKey || e.target.tagName === "INPUT") return;
  if (e.key === "t") turn();
  if (e.key === "x") loss.turnX();
});
document.addEventListener("visibilitychange", show);

theme(THEMES.includes(localStorage.getItem("beringia-theme")) ? localStorage.getItem("beringia-theme") : "auto");
$("url").textContent = new URL(".", location.href).href.replace(/\/$/, "");
setInterval(tick, 1000);
api.follow({ status: onStatus, state: onState, unauthorized: onUnauthorized });
