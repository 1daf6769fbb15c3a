// SPDX-License-Identifier: Apache-2.0
// Where each round's time went, as the hub saw it: from the version before to the first contribution (everybody
// trains), to the last one, the grace that was left, the merge, the publication.
import { $, colour, h, paper, span } from "./dom.js";

const PARTS = [["training", "training"], ["waiting", "for the other sites"], ["joining", "grace"], ["staged", "merge"],
  ["draining", "publication"]];
const ROUNDS = 60, HEIGHT = 220, FOOT = 18, LEFT = 46;

export function parts(r) {
  const first = r.staged_first > 0 ? Math.min(r.staged_first, r.merge_began) : r.merge_began;
  const last = r.staged_last > 0 ? Math.min(Math.max(r.staged_last, first), r.merge_began) : first;
  return [first - r.began, last - first, r.merge_began - last, r.merged - r.merge_began, r.published - r.merged]
    .map((s) => Math.max(s, 0));
}

export class Rounds {
  constructor() {
    this.list = [];
    $("rounds-legend").replaceChildren(...PARTS.map(([name, words]) => {
      const s = h("span", { class: "swatch" });
      s.style.background = `var(--${name})`;
      return h("li", {}, s, words);
    }));
    $("rounds").addEventListener("pointermove", (e) => this.point(e));
    $("rounds").addEventListener("pointerleave", () => this.sum());
    new ResizeObserver(() => this.draw()).observe($("rounds").parentElement);
  }

  load(timeline) {
    const newest = this.list.length ? this.list[this.list.length - 1].published : -1;
    this.list.push(...timeline.rounds.filter((r) => r.published > newest));
    this.list = this.list.slice(-500);
    this.draw();
  }

  draw() {
    const shown = this.shown = this.list.slice(-ROUNDS);
    const [c, width] = paper($("rounds"), HEIGHT), high = HEIGHT - FOOT - 6;
    const times = shown.map(parts), all = times.map((p) => p.reduce((a, b) => a + b, 0));
    const top = all.length ? nice(Math.max(...all, 0.001)) : 1, step = this.step = Math.min((width - LEFT - 4) / Math.max(shown.length, 1), 40);
    c.textAlign = "right";
    for (let k = 0; k <= 4; k++) {
      const y = 6 + high - k / 4 * high;
      c.fillStyle = colour("line");
      c.fillRect(LEFT, y, width - LEFT, 1);
      c.fillStyle = colour("dim");
      c.fillText(span(top * k / 4), LEFT - 5, y);
    }
    shown.forEach((r, i) => {
      let y = 6 + high;
      times[i].forEach((s, k) => {
        const part = s / top * high;
        c.fillStyle = colour(PARTS[k][0]);
        c.fillRect(LEFT + i * step, y - part, Math.max(step - 1, 1), part);
        y -= part;
      });
      if (i % Math.ceil(44 / step) === 0) {
        c.fillStyle = colour("dim");
        c.textAlign = "left";
        c.fillText(String(r.version), LEFT + i * step, HEIGHT - FOOT / 2);
      }
    });
    this.sum();
  }

  sum() {
    const times = (this.shown || []).slice(-20).map(parts), all = times.flat().reduce((a, b) => a + b, 0);
    const text = times.length === 0 ? "No round since the hub started." : `The last ${times.length} rounds, ` +
      `${span(all / times.length)} each: ` + PARTS.map(([, words], k) =>
      `${words} ${Math.round(100 * times.reduce((a, t) => a + t[k], 0) / (all || 1))} %`).join(", ");
    $("rounds-at").textContent = text;
    $("rounds").setAttribute("aria-label", text);
  }

  point(e) {
    const r = (this.shown || [])[Math.floor((e.offsetX - LEFT) / this.step)];
    if (!r) return;
    const p = parts(r);
    $("rounds-at").textContent = `version ${r.version}: ` + PARTS.map(([, words], k) => `${words} ${span(p[k])}`).join(", ");
  }
}

function nice(v) {
  const base = 10 ** Math.floor(Math.log10(v));
  return [1, 2, 4, 6, 8, 10].map((k) => k * base).find((x) => x >= v);
}
