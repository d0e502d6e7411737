// Messages instead of an answer: nothing found, a failure, or a wait.

import { element } from "/page/dom.js";
import { key_form } from "/page/key.js";

export function state(title, text, wrong = false) {
  return element("div", { class: wrong ? "state wrong" : "state", role: wrong ? "alert" : "note" },
    element("h2", {}, title), element("p", {}, text));
}

// The message for a problem document of the service. If a key, or another key, is needed, a form asks for it.
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

// Shows how long the page has waited and for what, until `end` is called.
export class Waiting {
  constructor(output, seconds = () => performance.now() / 1000) {
    this.begun = seconds();
    this.seconds = seconds;
    this.output = output;
    this.reason = "";
    this.note = null;
    this.timer = setInterval(() => this.update(), 500);
  }

  update() {
    const passed = Math.floor(this.seconds() - this.begun);
    if (this.note === null) {
      this.note = element("p", { class: "waiting", role: "status" });
      this.output.prepend(this.note);
    }
    this.note.textContent = `Reading${passed ? `, ${passed} s so far` : " …"}${this.reason ? `: ${this.reason}` : ""}`;
    if (passed === 2 || passed % 5 === 4) this.find_reason();
  }

  // Finds the shards that are not ready, if any.
  async find_reason() {
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
