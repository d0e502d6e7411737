// The texts and addresses of a result on the page and in the widget: title, source, address and confidence.

import { percent } from "/page/dom.js";

// Answers with a lower score are not shown.
const MIN_SCORE = 0.01;
const WORDS = { sure: "Sure", likely: "Likely", unsure: "A guess" };

// The title of a document and the headings above a passage. A heading that repeats the heading before it is left out.
export function path_of(found) {
  const path = [found.title, ...(found.section || [])].filter(Boolean);
  const same = (a, b) => a.trim().toLowerCase() === b.trim().toLowerCase();
  return path.filter((each, at) => !at || !same(each, path[at - 1])).join(" › ") || found.document_id || page_of(found.url);
}

// Whether a result has a page or a document. The answer of an editor may have neither.
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

// The path of a document on the service. `/documents/count` is a different resource, so the id `count` is percent-encoded.
export function document_path(id, collection) {
  const name = id === "count" ? "%63ount" : encodeURIComponent(id);
  return `/documents/${name}${collection ? `?${new URLSearchParams({ collection })}` : ""}`;
}

// "sure", "likely" or "unsure". A word that this version does not know is "unsure".
export function confidence_of(answer) {
  return Object.hasOwn(WORDS, answer.confidence) ? answer.confidence : "unsure";
}

export function confidence_words(confidence, score) {
  return `${WORDS[confidence]} (${percent(score)})`;
}

// The other possible answers: at most one from each sentence, without very improbable answers.
export function alternatives(answers) {
  const sentences = new Set(answers.slice(0, 1).map((answer) => answer.passage_id));
  return answers.slice(1).filter((answer) => {
    if (answer.score < MIN_SCORE || sentences.has(answer.passage_id)) return false;
    sentences.add(answer.passage_id);
    return true;
  });
}

// The other documents that contain an answer, without documents that would have the same text on the page.
export function mentions(answer) {
  const seen = new Set([path_of(answer)]);
  return (answer.also_in || []).filter((mention) => {
    const path = path_of(mention);
    return !seen.has(path) && seen.add(path);
  });
}
