// What the page says where an answer would be: nothing found, something failed, still at work.

import { element } from "/page/dom.js";
import { key_form } from "/page/key.js";

export function state(title, text, wrong = false) {
  return element("div", { class: wrong ? "state wrong" : "state", role: wrong ? "alert" : "note" },
    element("h2", {}, title), element("p", {}, text));
}

// A problem document of the service, in words; one that says that a key, or another one, is needed asks for it.
export function failed(problem, retry_seconds = null) {
  if (problem.status === 401 || problem.status === 403) return key_form(problem);
  const ended = /[.!?]$/.test(problem.detail || "") ? problem.detail : `${problem.detail}.`;
  const again = retry_seconds ? ` Please try again in ${retry_seconds} s.` : "";
  const shown = state(problem.title, `${ended[0].toUpperCase()}${ended.slice(1)}${again}`, true);
  if (problem.request_id) shown.append(element("p", { class: "muted" }, `Request ${problem.request_id}`));
  return shown;
}

export function unreachable(error) {
  return state("The service cannot be reached", `The browser says: ${error.message || error}`, true);
}

// Says after a moment what is waited for, until it is told that the wait is over.
export class Waiting {
  constructor(place, seconds = () => performance.now() / 1000) {
    this.begun = seconds();
    this.seconds = seconds;
    this.place = place;
    this.reason = "";
    this.note = null;
    this.timer = setInterval(() => this.tell(), 500);
  }

  tell() {
    const passed = Math.floor(this.seconds() - this.begun);
    if (this.note === null) {
      this.note = element("p", { class: "waiting", role: "status" });
      this.place.prepend(this.note);
    }
    this.note.textContent = `Reading${passed ? `, ${passed} s so far` : " …"}${this.reason ? `: ${this.reason}` : ""}`;
    if (passed === 2 || passed % 5 === 4) this.look();
  }

  // Which shards are waited for, if any.
  async look() {
    try {
      const found = await (await fetch("/readyz")).json();
      const missing = (found.shards || []).filter((shard) => !shard.ready);
      this.reason = found.ready ? "" : missing.length
        ? `waiting for ${missing.map((shard) => `${shard.address} (${shard.missing.join(", ")})`).join("; ")}`
        : found.detail;
    } catch {
      this.reason = "the service does not answer";
    }
  }

  end() {
    clearInterval(this.timer);
    if (this.note !== null) this.note.remove();
  }
}
