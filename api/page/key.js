// Sends requests with the API key, if the service requires one. The browser keeps the key until the tab is closed.

import { element } from "/page/dom.js";

const NAME = "qa-cluster-key";

// The callback after the user has entered a key. It loads the page again.
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
    // without session storage, the user must enter the key again after a reload
  }
}

// `fetch` with the key. The key goes only to this service, because all addresses on the page are paths.
export function ask_service(path, options = {}) {
  const key = stored();
  const headers = key ? { ...options.headers, authorization: `Bearer ${key}` } : options.headers;
  return fetch(path, { ...options, headers });
}

// A form that asks for a key instead of showing an answer: the service requires a key (401), or a key with more rights
// (403). After a 403, the page keeps the current key, because it may be valid for other requests.
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
  const title = missing ? "This service requires an API key"
    : problem.status === 403 ? "The key does not allow this request" : "The key was not accepted";
  const text = missing ? "Its operator can create one with “qa-cluster keys create”."
    : `${problem.detail[0].toUpperCase()}${problem.detail.slice(1)}.`;
  if (problem.status !== 403) store("");
  return element("div", { class: "state", role: "note" },
    element("h2", {}, title), element("p", {}, `${text} This page keeps the key until you close the tab.`), form);
}
