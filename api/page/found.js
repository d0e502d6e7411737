// What the page and the widget say about a result: its title, its source, its address, and how sure it is.

import { percent } from "/page/dom.js";

// Answers with a lower score are not shown.
const MIN_SCORE = 0.01;
const WORDS = { sure: "Sure", likely: "Likely", unsure: "A guess" };

// The title of a document and the headings above a place in it. A heading that repeats the one before it is left out.
export function path_of(found) {
  const path = [found.title, ...(found.section || [])].filter(Boolean);
  const same = (a, b) => a.trim().toLowerCase() === b.trim().toLowerCase();
  return path.filter((each, at) => !at || !same(each, path[at - 1])).join(" › ") || found.document_id || page_of(found.url);
}

// Whether a result leads somewhere: the answer of an editor may have no document and no page.
export function has_page(found) {
  return Boolean(found.document_id || page_of(found.url));
}

export function source_of(source) {
  if (source.line) return `${source.file}, line ${source.line}`;
  return source.page ? `${source.file}, page ${source.page}` : source.file;
}

// The address of a document's own page; empty unless it is a web address.
export function page_of(url) {
  if (typeof url !== "string" || !/^https?:\/\//i.test(url)) return "";
  try {
    return new URL(url).host && url;
  } catch {
    return "";
  }
}

// The path of a document on the service. `/documents/count` is another resource, so the id `count` is percent-encoded.
export function document_path(id, collection) {
  const name = id === "count" ? "%63ount" : encodeURIComponent(id);
  return `/documents/${name}${collection ? `?${new URLSearchParams({ collection })}` : ""}`;
}

// "sure", "likely" or "unsure". An unknown word of another version is "unsure".
export function confidence_of(answer) {
  return Object.hasOwn(WORDS, answer.confidence) ? answer.confidence : "unsure";
}

export function confidence_words(confidence, score) {
  return `${WORDS[confidence]} (${percent(score)})`;
}

// The further answers that say more than the first: each from another sentence, and none that is very improbable.
export function alternatives(answers) {
  const sentences = new Set(answers.slice(0, 1).map((answer) => answer.passage_id));
  return answers.slice(1).filter((answer) => {
    if (answer.score < MIN_SCORE || sentences.has(answer.passage_id)) return false;
    sentences.add(answer.passage_id);
    return true;
  });
}

// The further places of an answer, without places that look the same.
export function mentions(answer) {
  const seen = new Set([path_of(answer)]);
  return (answer.also_in || []).filter((mention) => {
    const path = path_of(mention);
    return !seen.has(path) && seen.add(path);
  });
}
