// Shows the result of a question: the answer, other answers, the closest passages, and how long it took.

import { document_of, link_to, link_to_text } from "/page/documents.js";
import { counted, element, units } from "/page/dom.js";
import { feedback } from "/page/feedback.js";
import { alternatives, confidence_of, confidence_words, has_page, mentions, source_of } from "/page/found.js";
import { small_headings } from "/page/headings.js";
import { ask_service } from "/page/key.js";
import { blocks, passage, passage_of, with_lines } from "/page/passage.js";
import { state } from "/page/states.js";

const PASSAGES = 5;
const BEFORE = 50;
const PASSAGE_CHARS = 480;

function fact(name, value) {
  return element("li", {}, `${name} `, element("b", {}, String(value)));
}

// The passage from a few words before the answer on. The style cuts it at the end of the row.
function line(answer) {
  const text = with_lines(answer.context);
  const start = units(text, answer.start - answer.context_start);
  const end = units(text, answer.end - answer.context_start);
  const [block] = blocks(text).filter((each) => each.from <= start).slice(-1);
  const first = start > BEFORE ? text.indexOf(" ", start - BEFORE) + 1 : 0;
  const from = Math.max(first > start ? start : first, block ? block.from : 0);
  return [from && from !== block?.from ? "… " : "", text.slice(from, start), element("mark", {}, text.slice(start, end)), text.slice(end)];
}

function origin(found, collection) {
  return element("p", { class: "path" }, link_to(found, collection),
    found.source ? element("span", {}, ` · ${source_of(found.source)}`) : null,
    link_to_text(found, collection));
}

// Links to other documents that contain the same answer.
function also(answer, collection) {
  const others = mentions(answer);
  if (!others.length) return null;
  const links = others.flatMap((mention, at) => [at ? " · " : "", link_to(mention, collection)]);
  return element("p", { class: "path" }, "Also in ", ...links);
}

function sureness(answer) {
  const confidence = confidence_of(answer);
  return element("span", { class: `sureness ${confidence}` }, confidence_words(confidence, answer.score));
}

async function best(answer, more, found, collection, signal) {
  const confidence = confidence_of(answer);
  // the answer of an editor has no passage
  const document = answer.pinned ? null : await document_of(answer, collection, signal);
  const shown = answer.pinned ? [] : passage_of(answer, document, document && small_headings(document), PASSAGE_CHARS);
  return element("article", { class: `answer ${confidence}` },
    answer.pinned ? element("p", { class: "pinned" }, "Answer of the editors") : null,
    element("p", { class: "found" }, answer.answer),
    answer.pinned ? null : element("p", { class: "how" }, sureness(answer),
      confidence === "unsure" ? " Please check the passage." : ""),
    element("div", { class: "passage" }, ...shown),
    has_page(answer) ? origin(answer, collection) : null,
    also(answer, collection),
    reply_to(found, answer, more, collection));
}

function others(answers, collection) {
  if (!answers.length) return null;
  const rows = answers.map((answer) => element("li", {},
    element("p", {}, element("b", {}, answer.answer), " ", sureness(answer)),
    element("p", { class: "line" }, ...line(answer)),
    origin(answer, collection),
    also(answer, collection)));
  return element("section", {}, element("h2", {}, "Other possible answers"), element("ol", { class: "others" }, ...rows));
}

// The hits of a search. Null if the key may not search.
async function hits_of(question, collection, count, fields = {}, signal = undefined) {
  const query = new URLSearchParams({ q: question, top_k: String(count), retriever: "both", ...fields });
  if (collection) query.set("collection", collection);
  const response = await ask_service(`/search?${query}`, { signal });
  return response.ok ? (await response.json()).hits : null;
}

// The feedback box of the first answer, or of a result without answers.
function reply_to(found, answer, more, collection) {
  return feedback(found.question, answer, collection,
    (body) => ask_service("/feedback", { method: "POST", headers: { "content-type": "application/json" }, body }),
    async () => [...more, ...await hits_of(found.question, collection, PASSAGES) || []]);
}

// The best passages of a search, without the sentences that are already on the page.
async function closest_passages(question, collection, shown, title, signal) {
  const all = await hits_of(question, collection, PASSAGES + shown.size, { context: "1" }, signal);
  const hits = (all || []).filter((hit) => !shown.has(hit.passage_id)).slice(0, PASSAGES);
  if (!hits.length) return null;
  const rows = hits.map((hit) => {
    const text = hit.passage || hit;
    const spans = hit.highlights.map((span) => [units(text.text, span.start - text.start), units(text.text, span.end - text.start)]);
    return element("li", {}, origin(hit, collection),
      element("div", { class: "passage quote" }, ...passage(with_lines(text.text), { spans })));
  });
  return element("section", {}, element("h2", {}, title), element("ol", { class: "others" }, ...rows));
}

const PARTS = { cache: "searching the caches", rank: "finding passages", rest: "everything else" };

function times(found, seen) {
  const timings = found.timings_ms;
  const parts = [["cache", PARTS.cache, timings.cache], ["rank", PARTS.rank, timings.rank]];
  timings.read.forEach((time, wave) => parts.push([`read-${Math.min(wave + 1, 3)}`,
    timings.read.length > 1 ? `reading, wave ${wave + 1}` : "reading", time]));
  const known = parts.reduce((sum, part) => sum + part[2], 0);
  parts.push(["rest", PARTS.rest, Math.max(0, timings.total - known)]);
  const bar = element("div", { class: "bar", "aria-hidden": "true" });
  const legend = element("div", { class: "legend" });
  for (const [kind, name, time] of parts) {
    if (time <= 0) continue;
    const part = element("span", { class: kind });
    part.style.flexGrow = time;
    bar.append(part);
    legend.append(element("span", {}, element("i", { class: kind }), `${name} ${time.toFixed(2)} ms`));
  }
  const cached = found.cache.status === "hit";
  return element("details", { class: "times" },
    element("summary", {}, cached
      ? `Answered in ${timings.total.toFixed(2)} ms, with an answer cached ${counted(found.cache.age_s, "second")} ago`
      : `Answered in ${timings.total.toFixed(1)} ms`),
    bar, legend,
    element("ul", { class: "facts" },
      fact("time in this browser", `${seen.toFixed(1)} ms`),
      fact("passages read", `${found.usage.sentences_read} of ${found.usage.candidates} found`),
      fact("shards that answered", `${found.index.shards_answered} of ${found.index.shards_total}`),
      fact("reader", `${found.model.id}, ${found.model.precision}`)));
}

// A note that some shards did not answer; null if all did.
function partial(index) {
  if (!index.partial) return null;
  return element("div", { class: "partial", role: "note" },
    element("p", {}, "Some documents could not be searched, so there may be a better answer."),
    element("details", {}, element("summary", {}, "Cause"),
      element("p", {}, `${index.missing.length} of ${counted(index.shards_total, "shard")} did not answer: ${index.missing.join(", ")}`)));
}

export async function result(found, seen, collection, signal) {
  const shown = [partial(found.index)];
  if (found.answerable) {
    const [first] = found.answers;
    const more = alternatives(found.answers);
    shown.push(await best(first, more, found, collection, signal), others(more, collection));
    if (confidence_of(first) === "unsure" && !first.pinned) {
      const sentences = new Set([first, ...more].map((answer) => answer.passage_id));
      shown.push(await closest_passages(found.question, collection, sentences, "Other results", signal));
    }
  } else if (found.usage.candidates) {
    shown.push(state("No answer in these documents",
      `The reader found no answer in the best ${counted(found.usage.sentences_read, "passage")}.`));
    const closest = await closest_passages(found.question, collection, new Set(), "The closest passages", signal);
    shown.push(closest && reply_to(found, null, [], collection), closest);
  } else {
    shown.push(state("No answer in these documents", "No document contains a word of this question."));
  }
  return [...shown, times(found, seen)].filter(Boolean);
}
