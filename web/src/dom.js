// SPDX-License-Identifier: Apache-2.0
// Elements and words. No text of the hub is ever taken as HTML.

export const $ = (id) => document.getElementById(id);

// h("td", {class: "left", data: {v: 3}}, "text", other)
export function h(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "data") Object.assign(e.dataset, value);
    else if (key.startsWith("--")) e.style.setProperty(key, value);
    else if (value !== false && value != null) e.setAttribute(key, value === true ? "" : value);
  }
  e.append(...children.filter((c) => c != null));
  return e;
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// A group of buttons of which one is pressed.
export function choices(host, names, chosen, change) {
  const buttons = names.map((name) => h("button", { type: "button", "aria-pressed": String(name === chosen) }, name));
  buttons.forEach((b, i) => b.addEventListener("click", () => {
    buttons.forEach((o) => o.setAttribute("aria-pressed", String(o === b)));
    change(names[i]);
  }));
  host.replaceChildren(...buttons);
  return () => buttons[(buttons.findIndex((b) => b.getAttribute("aria-pressed") === "true") + 1) % buttons.length].click();
}

// A canvas at the screen's own resolution; gives [context, width, height] in CSS pixels.
export function paper(canvas, height) {
  const width = Math.max(canvas.clientWidth, 50), scale = window.devicePixelRatio || 1;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const c = canvas.getContext("2d");
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.clearRect(0, 0, width, height);
  c.font = "12px system-ui, sans-serif";
  c.textBaseline = "middle";
  return [c, width, height];
}

export const exact = (n) => Math.round(n).toLocaleString("en-US");

export function short(n) {
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (Math.abs(n) >= size) return (n / size).toFixed(n / size < 100 ? 1 : 0) + " " + unit;
  return Number.isInteger(n) ? String(n) : n.toFixed(1);
}

export function bytes(n) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (n >= size) return (n / size).toFixed(1) + " " + unit;
  return n + " B";
}

export function span(s) {
  if (!Number.isFinite(s)) return "–";
  if (s < 10) return s.toFixed(1) + " s";
  if (s < 120) return s.toFixed(0) + " s";
  if (s < 7200) return (s / 60).toFixed(0) + " min";
  if (s < 172800) return (s / 3600).toFixed(1) + " h";
  return (s / 86400).toFixed(1) + " d";
}

const two = (n) => String(n).padStart(2, "0");
export function clock(wall, seconds = true) {
  const d = new Date(wall * 1000);
  return two(d.getHours()) + ":" + two(d.getMinutes()) + (seconds ? ":" + two(d.getSeconds()) : "");
}
export function date(wall) {
  if (!wall) return "–";
  const d = new Date(wall * 1000);
  return d.getFullYear() + "-" + two(d.getMonth() + 1) + "-" + two(d.getDate()) + " " + clock(wall);
}
