// The page: its form, its addresses and its history. An address is a question, a document, or the start page.

import { result } from "/page/answers.js";
import { show_document } from "/page/documents.js";
import { counted, element } from "/page/dom.js";
import { ask_service, when_given } from "/page/key.js";
import { show_marks } from "/page/passage.js";
import { start_page } from "/page/start.js";
import { failed, state, unreachable, Waiting } from "/page/states.js";
import { TypedResults } from "/page/typing.js";

const MAX_CACHED = 50;
// The name of the page, which the service sets.
const NAME = document.title;

const form = document.getElementById("ask");
const input = document.getElementById("question");
const output = document.getElementById("result");
const status_line = document.getElementById("status");
const refresh = document.getElementById("refresh");
const collections = document.getElementById("collection");
const typed = new TypedResults(input, document.getElementById("typed"), () => collections.value);
const asked = [];
let known_collections = [];
let position = -1;
let running = null;
// The results of recent addresses, for the Back button.
const results = new Map();

function cache_result(address, nodes) {
  results.delete(address);
  results.set(address, nodes);
  if (results.size > MAX_CACHED) results.delete(results.keys().next().value);
}

async function ask(question, collection, fresh, signal) {
  const query = new URLSearchParams({ question, top_k: "5" });
  if (collection) query.set("collection", collection);
  if (fresh) query.set("cache", "refresh");
  const begun = performance.now();
  const response = await ask_service(`/qa?${query}`, { signal, headers: { accept: "application/json" } });
  const body = await response.json();
  if (!response.ok) return [failed(body, response.headers.get("retry-after"))];
  return result(body, performance.now() - begun, collection, signal);
}

function content(wanted, collection, fresh, signal) {
  if (wanted.get("question")) return ask(wanted.get("question"), collection, fresh, signal);
  if (wanted.get("document")) return show_document(wanted, signal);
  return start_page(collection, known_collections, signal);
}

// Shows the content of an address. With `fresh`, the service reads the documents again and uses no cached answer.
async function show(address, fresh = false) {
  if (running) running.abort();
  typed.close();
  const controller = running = new AbortController();
  const wanted = new URL(address, location.href).searchParams;
  const collection = wanted.get("collection") || "";
  const question = wanted.get("question");
  input.value = question || "";
  if (Array.from(collections.options).some((each) => each.value === collection)) collections.value = collection;
  document.title = question ? `${question} – ${NAME}` : NAME;
  output.setAttribute("aria-busy", "true");
  const waiting = new Waiting(output);
  try {
    const nodes = await content(wanted, collection, fresh, controller.signal);
    if (question) cache_result(address, nodes);
    output.replaceChildren(...nodes);
    if (wanted.get("document")) output.querySelector("mark")?.scrollIntoView({ block: "center" });
    show_marks(output);
  } catch (error) {
    if (error.name !== "AbortError") output.replaceChildren(unreachable(error));
  } finally {
    waiting.end();
    if (running === controller) {
      running = null;
      output.setAttribute("aria-busy", "false");
    }
  }
}

function go(address, fresh = false) {
  if (address !== location.pathname + location.search) history.pushState(null, "", address);
  show(address, fresh);
}

function submit(question) {
  const query = new URLSearchParams();
  if (question) {
    if (asked[0] !== question) asked.unshift(question);
    query.set("question", question);
  }
  position = -1;
  if (collections.value) query.set("collection", collections.value);
  const text = query.toString();
  go(text ? `/?${text}` : "/", refresh.checked);
  refresh.checked = false;
}

// Shows whether the service is ready. Operators can open the cause.
async function show_status() {
  let why = "";
  try {
    const body = await (await fetch("/readyz")).json();
    if (!body.ready) why = body.detail || "a shard is not ready";
  } catch {
    why = "the service cannot be reached";
  }
  if (why === status_line.dataset.why) return;
  status_line.dataset.why = why;
  status_line.replaceChildren(why
    ? element("details", { class: "cause" }, element("summary", {}, "not ready"), element("p", {}, why)) : "ready");
}

// Offers the collections if there are several. The address of the page does not contain the name of the default collection.
async function show_collections(wanted) {
  try {
    const found = (await (await ask_service("/collections")).json()).data.filter((each) => each.state !== "deleting");
    known_collections = found;
    collections.replaceChildren(...found.map((each) => element("option", { value: each.name === "default" ? "" : each.name },
      `${each.name} (${counted(each.documents, "document")})`)));
    collections.value = found.some((each) => each.name === wanted) ? wanted : "";
    document.getElementById("of").hidden = found.length < 2;
  } catch {
    document.getElementById("of").hidden = true;
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  submit(input.value.trim());
});

input.addEventListener("keydown", (event) => {
  if (typed.on_key(event)) return;
  const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
  if (step === undefined || !asked.length) return;
  event.preventDefault();
  position = Math.max(-1, Math.min(asked.length - 1, position + step));
  input.value = position < 0 ? "" : asked[position];
});

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== input) {
    event.preventDefault();
    input.focus();
    input.select();
  } else if (event.key === "Escape" && running) {
    running.abort();
    output.replaceChildren(state("Stopped", "The question was cancelled."));
  }
});

document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target : null;
  const jump = target && target.closest("a[data-jump]");
  if (jump) {
    event.preventDefault();
    document.getElementById(jump.dataset.jump)?.scrollIntoView();
    return;
  }
  const link = target && target.closest("a[data-here]");
  if (link === null || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});

window.addEventListener("popstate", () => {
  const address = location.pathname + location.search;
  if (!results.has(address)) {
    show(address);
    return;
  }
  if (running) running.abort();
  input.value = new URLSearchParams(location.search).get("question") || "";
  output.replaceChildren(...results.get(address));
});

function begin() {
  return show_collections(new URLSearchParams(location.search).get("collection") || "")
    .then(() => show(location.pathname + location.search));
}

// The stored results belong to another key.
when_given(() => {
  results.clear();
  begin();
});
collections.addEventListener("change", () => submit(input.value.trim()));
begin();
show_status();
setInterval(show_status, 10000);
