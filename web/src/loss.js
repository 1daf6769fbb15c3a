// SPDX-License-Identifier: Apache-2.0
// Training loss of each version on the head's branch, and held-out loss where it was measured.
import uPlot from "uplot";
import { $, choices, clock, colour, date, short } from "./dom.js";

export class Loss {
  constructor() {
    this.axis = "tokens";
    this.kind = "loss";
    this.versions = [];
    this.heldout = [];
    this.turnX = choices($("axis-x"), ["tokens", "time"], this.axis, (v) => { this.axis = v; this.make(); });
    choices($("axis-y"), ["loss", "perplexity"], this.kind, (v) => { this.kind = v; this.make(); });
    $("loss").addEventListener("keydown", (e) => this.key(e));
    $("loss").addEventListener("pointerleave", () => this.plot && this.rest());
    new ResizeObserver(() => this.plot && this.plot.setSize(this.size())).observe($("loss"));
  }

  size() { return { width: Math.max($("loss").clientWidth, 200), height: 260 }; }

  show(versions, heldout) {
    this.versions = versions;
    this.heldout = heldout;
    if (this.plot) {
      this.plot.setData(this.data());
      this.rest();
    } else {
      this.make();
    }
    const n = versions.length, last = versions[n - 1];
    const said = this.heldout.length ? `; held-out ${this.heldout[this.heldout.length - 1].loss.toFixed(4)}` : "";
    $("loss").setAttribute("aria-label", last ? `Training loss over ${this.axis}, ${n} versions, now ` +
      `${last.loss.toFixed(4)} nats per token${said}. Left and right arrows go through them.` : "No version yet.");
  }

  // Points of both, sorted by x; where one is missing there is none.
  data() {
    const x = (v) => this.axis === "tokens" ? v.tokens : v.wall;
    const y = (loss) => this.kind === "loss" ? loss : Math.exp(loss);
    const by = new Map(this.versions.map((v) => [v.version, v]));
    const rows = new Map();
    for (const v of this.versions) if (v.loss > 0) rows.set(x(v), [y(v.loss), null, v.version]);
    for (const e of this.heldout) {
      const v = by.get(e.version);
      if (!v) continue;
      const row = rows.get(x(v)) || [null, null, v.version];
      row[1] = y(e.loss);
      rows.set(x(v), row);
    }
    const keys = [...rows.keys()].sort((a, b) => a - b);
    this.at = keys.map((k) => rows.get(k)[2]);
    return [keys, keys.map((k) => rows.get(k)[0]), keys.map((k) => rows.get(k)[1])];
  }

  make() {
    if (this.plot) this.plot.destroy();
    const ink = colour("dim"), grid = { stroke: colour("line"), width: 1 }, ticks = grid;
    const axisX = { stroke: ink, grid, ticks };
    if (this.axis === "tokens") axisX.values = (_, list) => list.map(short);
    const text = (v) => v == null ? "–" : v.toFixed(4);
    this.plot = new uPlot({
      ...this.size(),
      scales: { x: { time: this.axis === "time" } },
      legend: { live: true },
      axes: [axisX, { stroke: ink, grid, ticks, size: 60 }],
      series: [
        { label: this.axis, value: (_, v) => v == null ? "–" : this.axis === "tokens" ? short(v) : date(v) },
        { label: "training " + this.kind, stroke: colour("staged"), width: 2, spanGaps: true, value: (_, v) => text(v) },
        { label: "held-out " + this.kind, stroke: colour("silent"), width: 2, spanGaps: true, points: { show: true, size: 7 },
          value: (u, v, series, i) => { // seldom measured: what was known up to here
            for (let k = i; v == null && k >= 0; k--) v = u.data[series][k];
            return text(v);
          } },
      ],
    }, this.data(), $("loss"));
    this.plot.root.querySelector("canvas").setAttribute("aria-hidden", "true"); // what it shows is said by its frame
    this.rest();
  }

  // Without a pointer the legend has the newest.
  rest() {
    const n = this.plot.data[0].length;
    if (n && this.plot.cursor.idx == null) this.plot.setLegend({ idx: n - 1 });
  }

  key(e) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[e.key];
    if (!step || !this.plot) return;
    e.preventDefault();
    const data = this.plot.data, n = data[0].length;
    if (n === 0) return;
    this.index = Math.min(Math.max((this.index ?? n) + step, 0), n - 1);
    const i = this.index, x = data[0][i], y = data[1][i] ?? data[2][i];
    this.plot.setCursor({ left: this.plot.valToPos(x, "x"), top: this.plot.valToPos(y, "y") });
    $("loss-at").textContent = `version ${this.at[i]}: ${this.axis === "tokens" ? short(x) + " tokens" : clock(x)}, training ` +
      `${data[1][i]?.toFixed(4) ?? "–"}, held-out ${data[2][i]?.toFixed(4) ?? "–"}`;
  }
}
