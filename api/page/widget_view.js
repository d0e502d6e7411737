// The contents of the widget's dialog: rows of results, an answer with its quotes, and messages.

import { element } from "/page/dom.js";
import { feedback } from "/page/feedback.js";
import { alternatives, confidence_of, confidence_words, has_page, page_of, path_of } from "/page/found.js";
import { small_headings } from "/page/headings.js";
import { cause_of, words_of } from "/page/messages.js";
import { passage_of } from "/page/passage.js";
import { option, quote, QUOTE_CHARS } from "/page/rows.js";

const ANSWER_CHARS = 360;
const OTHER_ANSWERS = 2;

// The address of a result: its own page, or its text on the page of the service.
function address_at(service, found, asked) {
  const own = page_of(found.url);
  if (own) return own;
  const collection = found.collection || asked;
  const query = new URLSearchParams({ document: found.document_id, version: found.document_version });
  query.set("start", found.start);
  query.set("end", found.end);
  if (collection) query.set("collection", collection);
  return `${service}/?${query}`;
}

// The row that asks the question.
export function ask_row(question) {
  return option(0, { class: "ask" }, element("span", { class: "verb" }, "Ask "), element("b", {}, question));
}

// The attributes of the link of a hit.
export function link_at(service, collection) {
  return (hit) => ({ href: address_at(service, hit, collection), rel: "noopener noreferrer" });
}

// The answers of a result that the dialog shows: the best answer and other possible answers.
export function shown_answers(found) {
  return found.answerable ? [found.answers[0], ...alternatives(found.answers).slice(0, OTHER_ANSWERS)] : [];
}

function origin(found, service, collection) {
  return element("p", { class: "path" },
    element("a", { href: address_at(service, found, collection), rel: "noopener noreferrer" }, path_of(found)));
}

// The elements of a result: the best answer with its passage, and quotes with other answers; or a message that there is no
// answer. `document` is the document of the best answer, or null. `send` and `find` are the arguments of `feedback`.
export function answered(found, document, service, collection, send, find) {
  const nodes = [];
  if (found.index.partial) {
    nodes.push(element("p", { class: "note" }, "Some documents could not be searched, so there may be a better answer."));
  }
  if (!found.answerable) {
    nodes.push(element("p", { class: "note" }, "The documents do not answer this question. These are the closest results."),
      feedback(found.question, null, collection, send, find));
    return nodes;
  }
  const [first, ...more] = shown_answers(found);
  const confidence = confidence_of(first);
  nodes.push(element("article", { class: `answer ${confidence}` },
    element("p", { class: "found" }, first.answer),
    element("p", { class: "how" }, element("span", { class: "sureness" },
      first.pinned ? "Answer of the editors" : confidence_words(confidence, first.score)),
    confidence === "unsure" && !first.pinned ? " Please check the passage." : ""),
    element("div", { class: "passage" },
      ...(first.pinned ? [] : passage_of(first, document, document && small_headings(document), ANSWER_CHARS))),
    has_page(first) ? origin(first, service, collection) : null,
    feedback(found.question, first, collection, send, async () => [...more, ...await find()])));
  if (more.length) {
    nodes.push(element("h2", {}, "Other possible answers"), ...more.map((answer) => element("blockquote", {},
      element("p", {}, ...quote(answer.context, [[answer.start - answer.context_start, answer.end - answer.context_start]], QUOTE_CHARS)),
      origin(answer, service, collection))));
  }
  return nodes;
}

function message(title, text, lines) {
  return element("div", { class: "wrong", role: "alert" }, element("h2", {}, title), element("p", {}, text),
    element("details", {}, element("summary", {}, "Cause, for the operator"), ...lines.map((line) => element("p", {}, line))));
}

// The message for a problem document of the service.
export function refused(problem, retry_seconds) {
  const needs_key = problem.status === 401 || (problem.status === 403 && problem.code !== "CROSS_SITE");
  const [title, text] = needs_key ? ["Not available", "This site may not use the search."] : words_of(problem, retry_seconds);
  return message(title, text, cause_of(problem));
}

export function unreached(error) {
  return message("The search cannot be reached", "Please check your connection, and try again.",
    [`The browser says: ${error.message || error}`, "If other pages work, the service may not allow this site (cors_origins)."]);
}
