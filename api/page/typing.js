// Results of a search below the field while the user types a question.

import { address_of } from "/page/documents.js";
import { page_of } from "/page/found.js";
import { ask_service } from "/page/key.js";
import { choose, rows } from "/page/rows.js";

const TYPING_MS = 80;
const MIN_CHARS = 2;
const RESULTS = 6;

// The attributes of the link to a hit: to its own page, or to its text on this page.
function link_of(hit, collection) {
  const own = page_of(hit.url);
  return own ? { href: own, rel: "noopener noreferrer" } : { href: address_of(hit, collection), "data-here": "" };
}

export class TypedResults {
  // `collection` returns the name of the chosen collection.
  constructor(input, list, collection) {
    this.input = input;
    this.list = list;
    this.collection = collection;
    this.active = -1;
    this.timer = 0;
    this.running = null;
    input.addEventListener("input", () => this.on_input());
    // keeps the focus in the field when the user clicks on a row
    list.addEventListener("mousedown", (event) => event.preventDefault());
    list.addEventListener("click", () => this.close());
    input.addEventListener("blur", () => this.close());
  }

  get is_open() {
    return this.list.children.length > 0;
  }

  close() {
    clearTimeout(this.timer);
    if (this.running) this.running.abort();
    this.running = null;
    this.show([]);
  }

  show(nodes) {
    this.list.replaceChildren(...nodes);
    this.input.setAttribute("aria-expanded", String(nodes.length > 0));
    this.choose(-1);
  }

  choose(number) {
    this.active = number;
    choose(this.input, this.list, number);
  }

  // If the list is open, handles the keys of the list. Returns whether it has handled the key.
  on_key(event) {
    if (!this.is_open || event.isComposing) return false;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const count = this.list.children.length;
    if (step !== undefined) {
      // -1: the field itself is selected
      this.choose((this.active + 1 + step + count + 1) % (count + 1) - 1);
    } else if (event.key === "Escape") {
      this.close();
    } else if (event.key === "Enter" && this.active >= 0) {
      this.list.children[this.active].click();
    } else {
      return false;
    }
    event.preventDefault();
    event.stopPropagation();
    return true;
  }

  on_input() {
    clearTimeout(this.timer);
    if (this.running) this.running.abort();
    const text = this.input.value.trim();
    if (text.length < MIN_CHARS) this.show([]);
    else this.timer = setTimeout(() => this.find(text), TYPING_MS);
  }

  async find(text) {
    const controller = this.running = new AbortController();
    const collection = this.collection();
    const query = new URLSearchParams({ q: text, top_k: String(RESULTS), prefix: "true" });
    if (collection) query.set("collection", collection);
    try {
      const response = await ask_service(`/search?${query}`, { signal: controller.signal });
      // a key with only the scope `ask` may not search; then there are no results
      const hits = response.ok ? (await response.json()).hits : [];
      if (this.running === controller) this.show(rows(hits, (hit) => link_of(hit, collection)));
    } catch {
      if (this.running === controller) this.show([]);
    }
  }
}
