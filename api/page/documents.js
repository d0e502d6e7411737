// Links to stored documents, and a document with its outline and a marked answer.

import { counted, element, units } from "/page/dom.js";
import { document_path, page_of, path_of } from "/page/found.js";
import { headings_of, placed } from "/page/headings.js";
import { ask_service } from "/page/key.js";
import { passage } from "/page/passage.js";
import { failed, state } from "/page/states.js";

// To show a passage, the page does not load a larger document.
const MAX_BYTES = 1_000_000;
const MAX_DOCUMENTS = 8;
const TEXT_MS = 1500;
const MIN_OUTLINE = 3;
// The page's own headings have levels 1 and 2.
const TOP_LEVEL = 3;

// Recent documents by collection, id and version.
const texts = new Map();

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

// The link to the stored text, for a document whose title links to its own page. Null for other documents.
export function link_to_text(found, collection) {
  if (!page_of(found.url)) return null;
  return element("span", {}, " · ", element("a", { href: address_of(found, collection), "data-here": "" }, "stored text"));
}

// The document of an answer, which has the line breaks that the answer's passage lacks. Null if the document cannot be
// read, is large or slow, or has changed.
export async function document_of(answer, collection, signal) {
  const name = JSON.stringify([collection, answer.document_id, answer.document_version]);
  if (!texts.has(name)) {
    const limited = AbortSignal.any ? AbortSignal.any([signal, AbortSignal.timeout(TEXT_MS)]) : signal;
    try {
      const response = await ask_service(document_path(answer.document_id, collection), { signal: limited });
      if (!response.ok || Number(response.headers.get("content-length")) > MAX_BYTES) {
        response.body?.cancel();
        return null;
      }
      const found = await response.json();
      if (found.version !== answer.document_version) return null;
      texts.set(name, found);
      if (texts.size > MAX_DOCUMENTS) texts.delete(texts.keys().next().value);
    } catch (error) {
      if (signal.aborted) throw error;
      return null;
    }
  }
  return texts.get(name);
}

function outline(headings) {
  if (headings.length < MIN_OUTLINE) return null;
  const top = Math.min(...headings.map((heading) => heading.depth));
  return element("details", { class: "outline" }, element("summary", {}, `Contents (${counted(headings.length, "section")})`),
    element("ul", {}, ...headings.map((heading) => element("li", { class: `depth-${Math.min(heading.depth - top, 3)}` },
      element("a", { href: `#${heading.id}`, "data-jump": heading.id }, heading.title)))));
}

export async function show_document(wanted, signal) {
  const response = await ask_service(document_path(wanted.get("document"), wanted.get("collection")), { signal });
  const found = await response.json();
  if (!response.ok) return [failed(found)];
  const has_span = wanted.has("start") && wanted.has("end");
  const same = !wanted.get("version") || wanted.get("version") === found.version;
  const first = units(found.text, Number(wanted.get("start")) || 0);
  const last = units(found.text, Number(wanted.get("end")) || 0);
  const spans = has_span && same && first < last ? [[first, last]] : [];
  const places = placed(found.text, headings_of(found.metadata));
  const shown = new Map([...places].filter(([, heading]) => heading.is_there)
    .map(([at, heading]) => [at, { id: heading.id, level: Math.min(TOP_LEVEL + heading.depth, 6) }]));
  const title = found.title || found.id;
  // leaves out the title at the start of the text, because the heading shows it
  const start = found.text.startsWith(title) && /^\s*\n/.test(found.text.slice(title.length)) && (!spans.length || first > title.length)
    ? title.length : 0;
  const text = element("div", { class: "text" }, ...passage(found.text, { spans, from: start, headings: shown }));
  const listed = [...places.values()].filter((heading) => heading.is_there && heading.title !== title);
  const own = page_of(found.metadata.url);
  const facts = [found.id === title ? "" : found.id, counted(found.sentences, "sentence")].filter(Boolean);
  return [
    element("article", { class: "document" },
      element("h2", {}, title),
      element("p", { class: "muted" }, facts.join(" · ")),
      own ? element("p", {}, element("a", { class: "own", href: own, rel: "noopener noreferrer" },
        `Open the page at ${new URL(own).host}`)) : null,
      has_span && !same
        ? state("This document has changed", "The answer is from an earlier version, so it is not marked.")
        : null,
      found.failure ? state("This version cannot be searched", "Questions find no answers in it.", false, [found.failure]) : null,
      outline(listed),
      text),
  ];
}
