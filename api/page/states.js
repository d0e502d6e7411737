// Messages instead of an answer: nothing found, a failure, or a wait. Users get plain words. Operators can open the cause.

import { element } from "/page/dom.js";
import { key_form } from "/page/key.js";
import { cause_of, words_of } from "/page/messages.js";

function cause(lines) {
  return element("details", { class: "cause" }, element("summary", {}, "Cause, for the operator"),
    ...lines.map((line) => element("p", {}, line)));
}

export function state(title, text, wrong = false, lines = []) {
  return element("div", { class: wrong ? "state wrong" : "state", role: wrong ? "alert" : "note" },
    element("h2", {}, title), element("p", {}, text), lines.length ? cause(lines) : null);
}

// The message for a problem document of the service. If the request needs a key or another key, this is a form for a key.
export function failed(problem, retry_seconds = null) {
  const needs_key = problem.status === 401 || (problem.status === 403 && problem.code !== "CROSS_SITE");
  if (needs_key) return key_form(problem);
  return state(...words_of(problem, retry_seconds), true, cause_of(problem));
}

export function unreachable(error) {
  return state("The search cannot be reached", "Please check your connection, and try again.", true,
    [`The browser says: ${error.message || error}`]);
}

// Shows the time that the page has waited, and the shards for which it waits, until `end` is called.
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
      this.text = element("p", { class: "muted" });
      this.note = element("div", { class: "waiting", role: "status" }, this.text);
      this.output.prepend(this.note);
    }
    const why = this.reason ? " A part of the search is not ready yet." : "";
    this.text.textContent = `Reading${passed ? `, ${passed} s so far` : " …"}${why ? `.${why}` : ""}`;
    if (passed === 2 || passed % 5 === 4) this.find_reason();
  }

  // Finds the reason for the wait, for example shards that are not ready.
  async find_reason() {
    let reason = "the service does not answer";
    try {
      const found = await (await fetch("/readyz")).json();
      const missing = (found.shards || []).filter((shard) => !shard.ready);
      reason = found.ready ? "" : missing.length
        ? `waiting for ${missing.map((shard) => `${shard.address} (${shard.missing.join(", ")})`).join("; ")}`
        : found.detail;
    } catch {
      // `reason` already says that the service does not answer
    }
    if (reason === this.reason || this.note === null) return;
    this.reason = reason;
    this.note.replaceChildren(...[this.text, reason ? cause([reason]) : null].filter(Boolean));
  }

  end() {
    clearInterval(this.timer);
    if (this.note !== null) this.note.remove();
  }
}
