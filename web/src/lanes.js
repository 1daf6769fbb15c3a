// SPDX-License-Identifier: Apache-2.0
// Sites as lanes over time. A state has a colour and a height, so that it can be told without colours.
import { $, choices, clock, colour, date, h, paper, span } from "./dom.js";

const STATES = { // height of the lane, words
  training: [1, "training"], waiting: [0.55, "waiting"], syncing: [0.75, "syncing"], joining: [0.4, "joining"],
  draining: [0.75, "draining"], silent: [1, "silent (hatched)"], away: [0.12, "away"],
};
const SPANS = { "15 min": 900, "2 h": 7200, "24 h": 86400, all: Infinity };
const ROW = 26, AXIS = 22;

export class Lanes {
  constructor() {
    this.sites = new Map(); // name -> [[wall, state], ...]
    this.since = 0;
    this.chosen = "all";
    choices($("lanes-span"), Object.keys(SPANS), this.chosen, (v) => { this.chosen = v; this.draw(); });
    $("lanes-legend").replaceChildren(...Object.entries(STATES).map(([name, [, words]]) =>
      h("li", {}, h("span", { class: "swatch", "--c": `var(--${name})` }), words)));
    for (const s of $("lanes-legend").querySelectorAll(".swatch")) s.style.background = s.style.getPropertyValue("--c");
    $("lanes").addEventListener("pointermove", (e) => this.point(e));
    $("lanes").addEventListener("pointerleave", () => { $("lanes-at").textContent = ""; });
    new ResizeObserver(() => this.draw()).observe($("lanes").parentElement);
  }

  // What the hub kept, woven into what statuses said meanwhile: it is asked for again after each version.
  load(timeline) {
    if (!this.since) this.since = timeline.since;
    for (const site of timeline.sites) {
      const both = [...site.spans, ...(this.sites.get(site.name) || [])].sort((a, b) => a[0] - b[0]);
      this.sites.set(site.name, both.filter(([, state], i) => i === 0 || state !== both[i - 1][1]));
    }
  }

  // One status: what changed since the last.
  add(status) {
    for (const site of status.sites) {
      const state = !site.joined ? "away" : !site.live ? "silent" : site.phase;
      let list = this.sites.get(site.name);
      if (!list) this.sites.set(site.name, list = []);
      if (list.length && list[list.length - 1][1] === state) continue;
      list.push([status.wall, state]);
      if (list.length > 4000) list.splice(0, 1000);
    }
  }

  range(now) {
    const from = Math.max(this.since, now - SPANS[this.chosen]);
    return [from, Math.max(now, from + 10)];
  }

  draw(now = this.now) {
    if (!now) return;
    this.now = now;
    const names = [...this.sites.keys()].sort();
    const [c, width] = paper($("lanes"), Math.max(names.length, 1) * ROW + AXIS);
    const left = this.left = Math.min(130, width * 0.28), right = width - 6;
    const [from, to] = this.range(now), x = (t) => left + (t - from) / (to - from) * (right - left);
    names.forEach((name, row) => {
      const mid = row * ROW + ROW / 2, list = this.sites.get(name);
      c.fillStyle = colour("ink");
      c.textAlign = "left";
      c.fillText(name, 0, mid, left - 8);
      list.forEach(([t, state], i) => {
        const end = i + 1 < list.length ? list[i + 1][0] : now;
        if (end < from) return;
        const a = x(Math.max(t, from)), b = Math.max(x(end), a + 1), high = ROW * 0.8 * (STATES[state] || [0.5])[0];
        c.fillStyle = colour(state);
        c.fillRect(a, mid - high / 2, b - a, high);
        if (state === "silent") hatch(c, a, mid - high / 2, b - a, high);
        if (i > 0 && t >= from && (list[i - 1][1] === "away") !== (state === "away")) { // joined, left
          c.fillStyle = colour("ink");
          c.fillRect(a - 0.75, mid - ROW * 0.45, 1.5, ROW * 0.9);
        }
      });
    });
    axis(c, from, to, left, right, names.length * ROW + 4);
    $("lanes").setAttribute("aria-label", names.length ? "Sites over time, " + span(to - from) + ": " +
      names.map((n) => `${n} ${this.share(n, from, to)}`).join("; ") : "No site has joined yet.");
  }

  // "training 81 %, waiting 12 %"
  share(name, from, to) {
    const list = this.sites.get(name), sums = {};
    let all = 0;
    list.forEach(([t, state], i) => {
      const s = Math.min(i + 1 < list.length ? list[i + 1][0] : to, to) - Math.max(t, from);
      if (s > 0) { sums[state] = (sums[state] || 0) + s; all += s; }
    });
    return Object.entries(sums).sort((a, b) => b[1] - a[1]).slice(0, 3)
      .map(([state, s]) => `${state} ${Math.round(100 * s / all)} %`).join(", ") || "nothing yet";
  }

  point(e) {
    const names = [...this.sites.keys()].sort(), name = names[Math.floor(e.offsetY / ROW)];
    if (!name || !this.now || e.offsetX < this.left) return;
    const [from, to] = this.range(this.now);
    const t = from + (e.offsetX - this.left) / ($("lanes").clientWidth - 6 - this.left) * (to - from);
    const list = this.sites.get(name), i = list.findLastIndex(([at]) => at <= t);
    if (i < 0) return;
    const end = i + 1 < list.length ? list[i + 1][0] : this.now;
    $("lanes-at").textContent = `${name}: ${list[i][1]} from ${date(list[i][0])} for ${span(end - list[i][0])}; in all ` +
      this.share(name, from, to);
  }
}

function hatch(c, x, y, w, high) {
  c.save();
  c.beginPath();
  c.rect(x, y, w, high);
  c.clip();
  c.strokeStyle = colour("panel");
  c.lineWidth = 1.5;
  for (let at = x - high; at < x + w; at += 6) {
    c.beginPath();
    c.moveTo(at, y + high);
    c.lineTo(at + high, y);
    c.stroke();
  }
  c.restore();
}

function axis(c, from, to, left, right, y) {
  const steps = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
  const room = Math.max((right - left) / 90, 1), step = steps.find((s) => (to - from) / s <= room) || 2592000;
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  c.textAlign = "center";
  c.fillStyle = colour("dim");
  for (let t = Math.ceil((from - zone) / step) * step + zone; t <= to; t += step) {
    const x = left + (t - from) / (to - from) * (right - left);
    if (x < left + 20 || x > right - 20) continue;
    c.fillRect(x - 0.5, y - 4, 1, 5);
    c.fillText(step >= 86400 ? date(t).slice(5, 10) : clock(t, step < 60), x, y + 9);
  }
}
