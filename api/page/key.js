// Sends requests with the API key, once the service asks for one. The key is kept until the tab is closed.

import { element } from "/page/dom.js";

const NAME = "qa-cluster-key";

// Called when a key has been given, to show again what needed it.
let given = () => {};

export function when_given(callback) {
  given = callback;
}

function stored() {
  try {
    return sessionStorage.getItem(NAME) || "";
  } catch {
    return "";
  }
}

function store(key) {
  try {
    if (key) sessionStorage.setItem(NAME, key);
    else sessionStorage.removeItem(NAME);
  } catch {
    // a browser that stores nothing asks again for every page
  }
}

// `fetch` with the key. It goes to this service only: all addresses of the page are paths.
export function ask_service(path, options = {}) {
  const key = stored();
  const headers = key ? { ...options.headers, authorization: `Bearer ${key}` } : options.headers;
  return fetch(path, { ...options, headers });
}

// What stands in the place of an answer that needs a key (401), or one that may do more (403), which does not end the
// one that there is: it may be good for other things.
export function key_form(problem) {
  const field = element("input", { id: "key", type: "password", autocomplete: "off", spellcheck: "false", required: "" });
  const form = element("form", { class: "key" },
    element("label", { for: "key" }, "API key"), field, element("button", { type: "submit" }, "Use it"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    store(field.value.trim());
    given();
  });
  const missing = !stored();
  const title = missing ? "This service needs a key"
    : problem.status === 403 ? "The key may not do this" : "The key was not accepted";
  const text = missing ? "Whoever runs the service can make one with “qa-cluster keys create”."
    : `${problem.detail[0].toUpperCase()}${problem.detail.slice(1)}.`;
  if (problem.status !== 403) store("");
  return element("div", { class: "state", role: "note" },
    element("h2", {}, title), element("p", {}, `${text} A key is kept until this tab is closed.`), form);
}
