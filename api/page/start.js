// The start page: the number of documents, with example questions, collections and titles.

import { counted, element } from "/page/dom.js";
import { ask_service } from "/page/key.js";
import { failed, state } from "/page/states.js";

const TITLES = 8;
const COLLECTIONS = 30;

function link(query, text, collection) {
  if (collection) query.set("collection", collection);
  return element("a", { href: `/?${query}`, "data-here": "" }, text);
}

function list(title, items) {
  if (!items.length) return null;
  return element("section", {}, element("h2", {}, title), element("ul", { class: "examples" }, ...items));
}

// The list of collections with their sizes. The current collection has no link.
function listed_collections(all, collection) {
  if (all.length < 2) return null;
  return list("Collections", all.slice(0, COLLECTIONS).map((each) => {
    const name = each.name === "default" ? "" : each.name;
    const size = `${counted(each.documents, "document")}, ${counted(each.sentences, "sentence")}`;
    return element("li", {}, name === collection ? element("b", {}, each.name) : link(new URLSearchParams(), each.name, name),
      element("span", { class: "muted" }, ` ${size}`));
  }));
}

export async function start_page(collection, all, signal) {
  const query = collection ? `?${new URLSearchParams({ collection })}` : "";
  const [counted_all, listed_some] = await Promise.all(
    [`/documents/count${query}`, `/documents${query}${query ? "&" : "?"}limit=${TITLES}`]
      .map((address) => ask_service(address, { signal })));
  // With status 403, the key may not count documents, but may be able to ask.
  if (!counted_all.ok) return counted_all.status === 403 ? [] : [failed(await counted_all.json())];
  const count = await counted_all.json();
  const listed = listed_some.ok ? (await listed_some.json()).data : [];
  const collections = listed_collections(all, collection);
  if (!count.documents) {
    return [state("No documents yet", collections ? "This collection has no documents." : "There is nothing to search yet.",
      false, ["Add documents with: qa-cluster ingest FOLDER"]), collections].filter(Boolean);
  }
  const questions = collection ? [] : Array.from(document.getElementById("examples").content.children);
  const left = count.documents - listed.length;
  return [
    element("p", { class: "count" }, `${counted(count.documents, "document")} with ${counted(count.sentences, "sentence")}`
      + `${collection ? ` in ${collection}` : ""}.`),
    list("For example", questions.map((each) =>
      element("li", {}, link(new URLSearchParams({ question: each.textContent }), each.textContent, collection)))),
    collections,
    list(left > 0 ? "Some of the documents" : "The documents", listed.map((each) =>
      element("li", {}, link(new URLSearchParams({ document: each.id }), each.title || each.id, collection)))),
  ].filter(Boolean);
}
