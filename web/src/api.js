// SPDX-License-Identifier: Apache-2.0
// Talking to the hub this page came from, and to nothing else. Paths are relative: the hub may stand behind a
// proxy's prefix. A token, where the hub wants one, stays in this tab's session storage.

const KEY = "beringia-token";

export class Unauthorized extends Error {}

function headers(more = {}) {
  const token = sessionStorage.getItem(KEY);
  return token ? { ...more, Authorization: "Bearer " + token } : more;
}
export const hasToken = () => sessionStorage.getItem(KEY) !== null;
export const setToken = (token) => sessionStorage.setItem(KEY, token);

async function ask(path, more, signal) {
  const answer = await fetch(path, { headers: headers(more), cache: "no-store", signal });
  if (answer.status === 401 || answer.status === 403) {
    sessionStorage.removeItem(KEY);
    throw new Unauthorized(path);
  }
  if (!answer.ok) throw new Error(path + ": HTTP " + answer.status);
  return answer;
}

export const get = async (path) => (await ask(path)).json();

// Versions from..head, in as many answers as it takes; of a very long run the newest `most`.
export async function rounds(from, most) {
  const list = [];
  for (let next = from, head = null; head === null || next <= head;) {
    const page = await get("v1/rounds?from=" + next);
    if (head === null && page.head - from > most) {
      next = page.head - most;
      head = page.head;
      continue;
    }
    list.push(...page.rounds);
    head = page.head;
    if (page.next <= next) break;
    next = page.next;
  }
  return list;
}

// Server-sent events by fetch, since EventSource cannot send a token. Goes on for ever: see next to yield.
//   on.status(object), on.state("on" | "off", seconds until the next try), on.unauthorized()
export async function follow(on) {
  const ALIVE_MS = 15000; // the hub says something every few seconds
  let last = null, wait = 1;
  for (;;) {
    const stop = new AbortController();
    let timer = setTimeout(() => stop.abort(), ALIVE_MS);
    try {
      const answer = await ask("v1/events", last ? { "Last-Event-ID": last } : {}, stop.signal);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      on.state("on");
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        clearTimeout(timer);
        timer = setTimeout(() => stop.abort(), ALIVE_MS);
        wait = 1;
        text += value;
        for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
          const fields = {};
          for (const line of text.slice(0, end).split("\n")) {
            const at = line.indexOf(":");
            if (at > 0) fields[line.slice(0, at)] = line.slice(at + 1).replace(/^ /, "");
          }
          if (fields.id) last = fields.id;
          if (fields.event === "status") on.status(JSON.parse(fields.data));
        }
      }
    } catch (e) {
      if (e instanceof Unauthorized) await on.unauthorized();
    } finally {
      clearTimeout(timer);
    }
    on.state("off", wait);
    await new Promise((done) => setTimeout(done, wait * 1000));
    wait = Math.min(2 * wait, 30);
  }
}
