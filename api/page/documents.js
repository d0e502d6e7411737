// Links to stored documents, and a document with a marked answer.

import { counted, element, marked } from "/page/dom.js";
import { ask_service } from "/page/key.js";
import { failed, state } from "/page/states.js";

export function path_of(found) {
  return [found.title, ...(found.section || [])].filter(Boolean).join(" › ") || found.document_id;
}

export function source_of(source) {
  if (source.line) return `${source.file}, line ${source.line}`;
  return source.page ? `${source.file}, page ${source.page}` : source.file;
}

// The address of a document on this page, with the version that was read and the span to mark.
export function address_of(found, collection) {
  const query = new URLSearchParams({ document: found.document_id, version: found.document_version });
  query.set("start", found.start);
  query.set("end", found.end);
  if (collection) query.set("collection", collection);
  return `/?${query}`;
}

// A link to the document's own page if it has one, else to its text on this page.
export function link_to(found, collection) {
  const own = page_of(found.url);
  if (own) return element("a", { href: own, rel: "noopener noreferrer" }, path_of(found));
  return element("a", { href: address_of(found, collection), "data-here": "" }, path_of(found));
}

// The link to the text of a document whose title links to its own page.
export function link_to_text(found, collection) {
  if (!page_of(found.url)) return null;
  return element("span", {}, " · ", element("a", { href: address_of(found, collection), "data-here": "" }, "stored text"));
}

// The address of a document's own page; empty unless it is a web address.
function page_of(url) {
  return typeof url === "string" && /^https?:\/\//i.test(url) ? url : "";
}

// `/documents/count` is another resource, so the id `count` is percent-encoded.
function in_path(id) {
  return id === "count" ? "%63ount" : encodeURIComponent(id);
}

export async function show_document(wanted, signal) {
  const query = new URLSearchParams();
  if (wanted.get("collection")) query.set("collection", wanted.get("collection"));
  const response = await ask_service(`/documents/${in_path(wanted.get("document"))}?${query}`, { signal });
  const found = await response.json();
  if (!response.ok) return [failed(found)];
  const has_span = wanted.has("start") && wanted.has("end");
  const same = !wanted.get("version") || wanted.get("version") === found.version;
  const spans = has_span && same ? [[Number(wanted.get("start")), Number(wanted.get("end"))]] : [];
  return [
    element("article", { class: "document" },
      element("h2", {}, found.title || found.id),
      element("p", { class: "muted" }, [found.id, counted(found.sentences, "sentence")].join(" · ")),
      page_of(found.metadata.url)
        ? element("p", {}, element("a", { href: found.metadata.url, rel: "noopener noreferrer" }, found.metadata.url))
        : null,
      has_span && !same
        ? state("This document has changed", "The answer is from an earlier version, so it is not marked.")
        : null,
      element("div", { class: "text" }, ...marked(found.text, spans))),
  ];
}
