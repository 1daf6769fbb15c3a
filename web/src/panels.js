// SPDX-License-Identifier: Apache-2.0
// What is words and numbers. Each number carries the hub's own value in data-v, by which the test compares.
import { hasToken } from "./api.js";
import { $, bytes, clock, date, exact, h, short, span } from "./dom.js";

// ---- The run -----------------------------------------------------------------------------------------
export function summary(s) {
  const left = s.tokens_per_s > 0 ? (s.tokens_total - s.tokens) / s.tokens_per_s : NaN;
  const percent = 100 * s.progress;
  $("run-id").textContent = s.run;
  $("progress").setAttribute("aria-valuenow", percent.toFixed(1));
  $("progress").firstElementChild.style.width = Math.min(percent, 100) + "%";
  $("progress").lastElementChild.textContent = percent.toFixed(1) + " %" + (s.complete ? ", complete" : "");
  document.title = `${percent.toFixed(0)} % Beringia`;
  const tiles = [
    ["version", "head", s.head, exact(s.head)],
    ["tokens", "tokens", s.tokens, short(s.tokens)],
    ["of tokens", "tokens_total", s.tokens_total, short(s.tokens_total)],
    ["tokens/s", "tokens_per_s", s.tokens_per_s, short(s.tokens_per_s)],
    ["time left", null, left, s.complete ? "none" : span(left)],
    ["training loss", "loss", s.loss, s.loss > 0 ? s.loss.toFixed(4) : "–"],
    ["learning rate", "lr", s.lr, s.lr.toExponential(2)],
    ["sites joined", "sites_joined", s.sites_joined, s.sites_joined],
    ["sites live", "sites_live", s.sites_live, s.sites_live],
    ["contributing", "sites_contributing", s.sites_contributing, s.sites_contributing],
    ["epoch", "epoch", s.epoch, `${Math.min(s.epoch + 1, s.epochs)} of ${s.epochs}`],
    ["reclaimed", "reclaimed_share", s.reclaimed_share, (100 * s.reclaimed_share).toFixed(2) + " %"],
    ["refused", "rejected", s.rejected, exact(s.rejected)],
    ["received", "uploads_bytes", s.uploads_bytes, bytes(s.uploads_bytes)],
    ["hub up", null, s.uptime_s, span(s.uptime_s)],
  ];
  $("tiles").replaceChildren(...tiles.map(([name, field, value, text]) =>
    h("div", {}, h("dt", {}, name), h("dd", { data: field ? { f: field, v: value } : {} }, String(text)))));
}

// ---- Alarms ------------------------------------------------------------------------------------------
let alarmsShown = "";
export function alarms(list) {
  const now = JSON.stringify(list);
  if (now === alarmsShown) return; // a screen reader reads what changes
  alarmsShown = now;
  $("alarm-list").replaceChildren(...list.map((a) => h("li", { class: a.level, data: { alarm: a.id } },
    h("b", { class: a.level }, { error: "Error: ", warn: "Warning: ", info: "" }[a.level] ?? ""),
    (a.subject ? a.subject + ": " : "") + a.text + ". ", h("span", { class: "remedy" }, a.remedy))));
  if (!list.length) $("alarm-list").append(h("li", { class: "info" }, "None."));
}

// ---- The ledger --------------------------------------------------------------------------------------
export function ledger(s) {
  const c = s.counts, total = s.positions * s.epochs;
  const opened = c.merged + c.staged + c.leased + c.available + c.quarantined + c.skipped;
  // Epochs that nobody has begun have no ledger yet: all of their positions are free.
  const free = c.available + (total - opened);
  const parts = [["merged", c.merged], ["staged", c.staged], ["leased", c.leased], ["quarantined", c.quarantined],
    ["skipped", c.skipped], ["free", free]];
  const sum = parts.reduce((a, [, n]) => a + n, 0);
  const share = (n) => total ? (100 * n / total).toFixed(2) + " %" : "–";
  $("ledger").replaceChildren(...parts.filter(([, n]) => n > 0).map(([name, n]) => {
    const part = h("i", { title: `${name}: ${exact(n)}` });
    part.style.flex = `${n} 0 0`;
    part.style.background = `var(--${name})`;
    return part;
  }));
  $("ledger").setAttribute("aria-label", parts.map(([name, n]) => `${name} ${exact(n)}, ${share(n)}`).join("; "));
  $("ledger-legend").replaceChildren(...parts.map(([name, n]) => {
    const swatch = h("span", { class: "swatch" });
    swatch.style.background = `var(--${name})`;
    return h("div", {}, h("dt", {}, swatch, name), h("dd", { data: { f: "ledger." + name, v: n } }, `${exact(n)} · ${share(n)}`));
  }));
  const good = sum === total && opened <= total && opened % Math.max(s.positions, 1) === 0;
  $("ledger-sum").textContent = `Sum ${exact(sum)} = ${exact(s.positions)} positions × ${s.epochs} ` +
    `epoch${s.epochs === 1 ? "" : "s"}${good ? "" : ": DOES NOT ADD UP, please report it with the journal"}`;
  $("ledger-sum").dataset.good = String(good);
}

// ---- Sites -------------------------------------------------------------------------------------------
export function sites(s, ago) {
  const head = ["site", "state", "version", "tokens/s", "loss", "leased", "done", "accepted", "merged", "refused", "tokens merged",
    "heard"];
  const rows = s.sites.map((x) => {
    const state = !x.joined ? "away" : !x.live ? "silent" : x.phase, heard = x.heard_ago_s < 0 ? NaN : x.heard_ago_s + ago;
    const cell = (f, v, text) => h("td", { data: { f, v } }, text);
    return h("tr", { data: { site: x.name } }, h("th", { scope: "row" }, x.name),
      h("td", { class: "state", "--c": `var(--${state})`, data: { f: "state", v: state } }, state),
      cell("base", x.base, exact(x.base)), cell("tokens_per_s", x.tokens_per_s, x.live && x.joined ? short(x.tokens_per_s) : "–"),
      cell("loss", x.loss, x.loss > 0 ? x.loss.toFixed(4) : "–"), cell("samples_leased", x.samples_leased, exact(x.samples_leased)),
      cell("samples_done", x.samples_done, exact(x.samples_done)), cell("contributions", x.contributions, exact(x.contributions)),
      cell("merged", x.merged, exact(x.merged)), cell("rejected", x.rejected, exact(x.rejected)),
      cell("tokens_merged", x.tokens_merged, short(x.tokens_merged)),
      h("td", {}, x.joined ? span(heard) + " ago" : "–"));
  });
  $("sites").replaceChildren(h("thead", {}, h("tr", {}, ...head.map((t) => h("th", { scope: "col" }, t)))), h("tbody", {}, ...rows));
  if (!rows.length) $("sites").append(h("caption", {}, "No site has joined yet."));
}

// ---- Queues ------------------------------------------------------------------------------------------
const median = (list) => list.length ? list.slice().sort((a, b) => a - b)[Math.floor((list.length - 1) / 2)] : NaN;

export function queue(status, jobs, ago) {
  if (!status.facilities.length) {
    $("queue").replaceChildren(h("p", { class: "note" },
      "No agent reports. With `beringia agent` on a facility's login node its queue shows here."));
    return;
  }
  $("queue").replaceChildren(...status.facilities.map((f) => facility(f, jobs.filter((j) => j.facility === f.name), ago)));
}

function facility(f, jobs, ago) {
  const count = (state) => f.jobs.filter((j) => j.state === state).length;
  const started = jobs.filter((j) => j.start > 0 && j.estimate > 0), errors = started.map((j) => j.start - j.estimate);
  const now = f.probes.map((p) => `${p.shape}: ${p.class === "fine" ? "would start in " + span(Math.max(p.start - p.at, 0)) : p.class}`);
  const rows = jobs.slice(-8).reverse().map((j) => h("tr", {}, h("td", { class: "left" }, `${j.order}/${j.job} ${j.shape}`),
    h("td", {}, j.state), h("td", {}, j.submit ? clock(j.submit) : "–"), h("td", {}, j.estimate ? clock(j.estimate) : "–"),
    h("td", {}, j.start ? clock(j.start) : "–"), h("td", {}, j.start && j.estimate ? signed(j.start - j.estimate) : "–")));
  return h("div", { class: "facility", data: { facility: f.name } }, h("h3", {}, f.name),
    h("p", {}, `${count("running")} running, ${count("pending")} pending` + (now.length ? "; now " + now.join(", ") : "") +
      (f.heard_ago_s < 0 ? "; its agent has not reported since the hub started" : `; agent heard ${span(f.heard_ago_s + ago)} ago`)),
    errors.length ? h("p", {}, `${errors.length} started: median ${signed(median(errors))} against the first promise, ` +
      `off by ${span(median(errors.map(Math.abs)))}`) : null,
    rows.length ? h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "jobs of " + f.name }, h("table", {},
      h("thead", {}, h("tr", {}, ...["order/job", "state", "submitted", "promised", "started", "late by"].map((t) =>
        h("th", { scope: "col" }, t)))), h("tbody", {}, ...rows))) : null);
}
const signed = (s) => (s < 0 ? "−" : "+") + span(Math.abs(s));

// ---- Versions ----------------------------------------------------------------------------------------
export function versions(list, heldout, weights) {
  const by = new Map(heldout.map((e) => [e.version, e.loss]));
  const rows = list.map((v) => {
    const path = `v1/versions/${v.version}/checkpoint`, name = `beringia-${v.version}.safetensors`;
    // A link cannot send a token; then there is the command, which keeps it out of the list of processes.
    const curl = `curl -H @<(sed 's/^/Authorization: Bearer /' TOKENFILE) --cacert ca.pem -C - -o ${name} ${new URL(path, location.href)}`;
    const link = !weights ? "not with this token" : hasToken() ? h("code", {}, curl) : h("a", { href: path, download: name }, name);
    return h("tr", { data: { version: v.version } }, h("th", { scope: "row" }, exact(v.version)), h("td", {}, short(v.tokens)),
      h("td", {}, v.loss > 0 ? v.loss.toFixed(4) : "–"), h("td", {}, by.has(v.version) ? by.get(v.version).toFixed(4) : "–"),
      h("td", {}, exact(v.sites)), h("td", {}, date(v.wall)), h("td", {}, h("code", { title: v.theta }, v.theta.slice(0, 12))),
      h("td", {}, bytes(v.bytes)), h("td", { class: "left" }, link));
  });
  $("versions").replaceChildren(h("thead", {}, h("tr", {}, ...["version", "tokens", "loss", "held-out", "sites", "made",
    "θ (SHA-256)", "size"].map((t) => h("th", { scope: "col" }, t)), h("th", { scope: "col", class: "left" }, "file"))),
    h("tbody", {}, ...rows));
}
