// The widget: a search box on a page of another site, and a dialog with results and answers. It is in a shadow tree with
// its own style, never inserts strings as HTML, and sends requests only to the service.

import { element } from "/page/dom.js";
import { document_path } from "/page/found.js";
import { show_marks } from "/page/passage.js";
import { choose, rows } from "/page/rows.js";
import { answered, ask_row, link_at, refused, shown_answers, unreached } from "/page/widget_view.js";

const TYPING_MS = 80;
const MIN_CHARS = 2;
const RESULTS = 8;
const ANSWERS = 5;
const MAX_CHARS = 1000;
// To show a passage, the widget does not load a document that is larger or slower.
const MAX_BYTES = 300_000;
const TEXT_MS = 1000;
const NAME = "qa-cluster-search";

const script = document.currentScript;

// The options of the script tag: `data-service`, `data-collection`, `data-key`, `data-title` and so on.
function options_of(tag) {
  const given = tag ? tag.dataset : {};
  const service = new URL(given.service || ".", (tag && tag.src) || location.href);
  if (!/^https?:$/.test(service.protocol)) throw new Error(`data-service is not a web address: ${service}`);
  return {
    service: `${service.origin}${service.pathname.replace(/\/+$/, "")}`,
    // a search covers all collections; a question is asked in the first collection
    collections: (given.collection || "").split(",").map((each) => each.trim()).filter(Boolean),
    key: given.key || "",
    title: given.title || "Search",
    placeholder: given.placeholder || "Ask a question or search",
    theme: given.theme || "",
    target: given.target || "",
  };
}

class Search {
  constructor(options, has_keys) {
    this.options = options;
    this.collection = options.collections.find((each) => each !== "*") || "";
    this.running = null;
    this.timer = 0;
    this.active = 0;
    this.prefix = true;
    this.hits = [];
    this.host = element(NAME, options.theme ? { "data-theme": options.theme } : {});
    this.build();
    if (has_keys) document.addEventListener("keydown", (event) => this.on_page_key(event));
  }

  build() {
    const { title, placeholder } = this.options;
    const mac = /mac|iphone|ipad/i.test(navigator.platform || "");
    this.button = element("button", { type: "button", class: "open", "aria-haspopup": "dialog" }, element("span", {}, title),
      element("kbd", { "aria-hidden": "true" }, mac ? "⌘ K" : "Ctrl K"));
    this.input = element("input", { type: "text", role: "combobox", "aria-expanded": "false", "aria-controls": "results",
      "aria-autocomplete": "list", "aria-label": title, placeholder, autocomplete: "off", autocapitalize: "off",
      spellcheck: "false", enterkeyhint: "search", maxlength: String(MAX_CHARS) });
    this.close = element("button", { type: "button", class: "close", "aria-label": "Close" }, "Esc");
    this.answer = element("section", { class: "answers", "aria-live": "polite", "aria-label": "Answer" });
    this.list = element("div", { id: "results", role: "listbox", "aria-label": "Results" });
    this.status = element("p", { class: "status", role: "status" });
    const hints = element("p", { class: "hints", "aria-hidden": "true" }, element("kbd", {}, "↑"), " ", element("kbd", {}, "↓"),
      " choose ", element("kbd", {}, "Enter"), " ask or open ", element("kbd", {}, "Esc"), " close");
    this.dialog = element("dialog", { "aria-label": title, "aria-modal": "true" },
      element("div", { class: "head" }, this.input, this.close),
      element("div", { class: "body" }, this.status, this.answer, this.list), hints);
    const root = this.host.attachShadow({ mode: "open" });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(STYLE);
    root.adoptedStyleSheets = [sheet];
    root.append(this.button, this.dialog);
    this.button.addEventListener("click", () => this.open());
    this.close.addEventListener("click", () => this.dialog.close());
    this.input.addEventListener("input", () => this.on_input());
    this.dialog.addEventListener("keydown", (event) => this.on_key(event));
    this.dialog.addEventListener("close", () => this.stop());
    // a click on the backdrop is a click on the dialog itself
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
      const row = event.target instanceof Element && event.target.closest("[role=option]");
      if (row && !row.hasAttribute("href")) this.ask();
    });
  }

  open() {
    if (this.dialog.open) return;
    this.dialog.showModal();
    this.input.focus();
    this.input.select();
  }

  stop() {
    clearTimeout(this.timer);
    if (this.running) this.running.abort();
    this.running = null;
    this.dialog.removeAttribute("aria-busy");
  }

  // Handles Ctrl-K, and `/` outside of text fields, on the whole page.
  on_page_key(event) {
    const target = event.composedPath()[0];
    const typing = target instanceof HTMLElement && (target.isContentEditable || /^(?:INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      if (this.dialog.open) this.dialog.close();
      else this.open();
    } else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey && !this.dialog.open) {
      event.preventDefault();
      this.open();
    }
  }

  on_key(event) {
    if (event.isComposing) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined && this.list.children.length) {
      event.preventDefault();
      const count = this.list.children.length;
      this.choose(this.active < 0 && step < 0 ? count - 1 : (this.active + step + count) % count);
    } else if (event.key === "Enter" && event.composedPath()[0] === this.input) {
      event.preventDefault();
      const row = this.list.children[this.active];
      if (row && row.hasAttribute("href")) row.click();
      else this.ask();
    } else if (event.key === "Tab") {
      this.keep_focus(event);
    }
  }

  // Keeps the focus in the dialog: Tab on the last element moves it to the first.
  keep_focus(event) {
    const all = [...this.dialog.querySelectorAll("input, button, a[href]:not([role=option]), summary")]
      .filter((each) => each.getClientRects().length);
    const [first, last] = event.shiftKey ? [all[0], all.at(-1)] : [all.at(-1), all[0]];
    if (this.host.shadowRoot.activeElement !== first) return;
    event.preventDefault();
    last.focus();
  }

  choose(number) {
    this.active = number;
    choose(this.input, this.list, number);
  }

  show_rows(nodes, chosen = 0) {
    this.list.replaceChildren(...nodes);
    this.input.setAttribute("aria-expanded", String(nodes.length > 0));
    this.choose(chosen);
  }

  request(path, fields, signal, collections = [this.collection]) {
    const query = new URLSearchParams(fields);
    for (const each of collections) if (each) query.append("collection", each);
    return this.fetch(`${path}?${query}`, signal);
  }

  fetch(path, signal, body) {
    const { service, key } = this.options;
    return fetch(service + path, {
      signal, body, method: body ? "POST" : "GET", credentials: "omit", referrerPolicy: "no-referrer", redirect: "error",
      headers: { ...(key && { authorization: `Bearer ${key}` }), ...(body && { "content-type": "application/json" }) },
    });
  }

  // Stops the running work, runs `work`, and shows its failure.
  async run(work) {
    this.stop();
    const controller = this.running = new AbortController();
    try {
      await work(controller.signal);
    } catch (error) {
      if (this.running === controller) this.answer.replaceChildren(unreached(error));
    } finally {
      if (this.running === controller) {
        this.running = null;
        this.dialog.removeAttribute("aria-busy");
      }
    }
  }

  on_input() {
    this.stop();
    const text = this.input.value.trim();
    this.answer.replaceChildren();
    this.status.textContent = "";
    this.hits = [];
    if (text.length < MIN_CHARS) {
      this.show_rows([]);
      return;
    }
    this.timer = setTimeout(() => this.run((signal) => this.find(text, signal)), TYPING_MS);
  }

  async search(text, signal, count = RESULTS) {
    const fields = { q: text, top_k: String(count) };
    const { collections } = this.options;
    const response = await this.request("/search", this.prefix ? { ...fields, prefix: "true" } : fields, signal, collections);
    if (response.status !== 422 || !this.prefix) return response;
    const again = await this.request("/search", fields, signal, collections);
    // a service of an older version does not support `prefix`
    if (again.ok) this.prefix = false;
    return again;
  }

  // Searches and shows results while the user types.
  async find(text, signal) {
    const { service } = this.options;
    const { collection } = this;
    const response = await this.search(text, signal);
    const body = await response.json();
    signal.throwIfAborted();
    if (!response.ok) {
      this.show_rows([ask_row(text)]);
      // a key with only the scope `ask` may not search; then the dialog shows no results
      if (response.status !== 403) this.answer.replaceChildren(refused(body, response.headers.get("retry-after")));
      return;
    }
    this.hits = body.hits;
    this.show_rows([ask_row(text), ...rows(body.hits, link_at(service, collection))]);
    this.status.textContent = body.hits.length ? "" : "No results. Press Enter to ask.";
  }

  // The document of an answer, which has the line breaks of the passage. Null if the key may not read the document, or if
  // the document is large, slow or changed.
  async document_of(answer, signal) {
    try {
      const limited = AbortSignal.any([signal, AbortSignal.timeout(TEXT_MS)]);
      const response = await this.fetch(document_path(answer.document_id, this.collection), limited);
      if (!response.ok || Number(response.headers.get("content-length")) > MAX_BYTES) {
        response.body?.cancel();
        return null;
      }
      const found = await response.json();
      return found.version === answer.document_version ? found : null;
    } catch {
      return null;
    }
  }

  // Sentences of the collection that may be a better answer to a question.
  async places(question) {
    const response = await this.request("/search", { q: question, top_k: String(RESULTS), retriever: "both" });
    return response.ok ? (await response.json()).hits : [];
  }

  ask() {
    const question = this.input.value.trim();
    if (question.length < MIN_CHARS) return;
    this.run(async (signal) => {
      this.dialog.setAttribute("aria-busy", "true");
      this.status.textContent = "Reading …";
      this.answer.replaceChildren();
      try {
        await this.show_answer(question, signal);
      } finally {
        if (!signal.aborted) this.status.textContent = "";
      }
    });
  }

  async show_answer(question, signal) {
    const { service } = this.options;
    const { collection } = this;
    const [reply] = await Promise.all([
      this.request("/qa", { question, top_k: String(ANSWERS) }, signal),
      this.hits.length ? null : this.find(question, signal),
    ]);
    const body = await reply.json();
    const shown = reply.ok ? shown_answers(body) : [];
    const document = shown.length && !shown[0].pinned ? await this.document_of(shown[0], signal) : null;
    signal.throwIfAborted();
    if (!reply.ok) {
      this.answer.replaceChildren(refused(body, reply.headers.get("retry-after")));
      return;
    }
    this.answer.replaceChildren(...answered(body, document, service, collection,
      (reply) => this.fetch("/feedback", undefined, reply), () => this.places(question)));
    // no row is selected, so Enter asks again, and the arrow keys start at the first row
    this.show_rows(rows(this.hits, link_at(service, collection), shown.map((each) => each.passage_id)), -1);
    show_marks(this.answer);
    this.answer.scrollIntoView({ block: "nearest" });
  }
}

function place(search) {
  const { target } = search.options;
  let found = null;
  try {
    found = target ? document.querySelector(target) : null;
  } catch {
    // data-target is not a valid selector
  }
  if (target && !found) console.warn(`${NAME}: no element matches data-target ${target}`);
  if (found) {
    found.append(search.host);
  } else if (script && document.body && document.body.contains(script)) {
    script.after(search.host);
  } else {
    search.host.setAttribute("data-floating", "");
    document.body.append(search.host);
  }
}

function start() {
  // if a page has several boxes, the keys open the first box
  place(new Search(options_of(script), document.querySelector(NAME) === null));
}

if (document.body) start();
else document.addEventListener("DOMContentLoaded", start);
