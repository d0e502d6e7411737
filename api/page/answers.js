// Shows the result of a question: the answer, other answers, the closest passages, and how long it took.

import { counted, element, marked, percent, units } from "/page/dom.js";
import { link_to, link_to_text, source_of } from "/page/documents.js";
import { ask_service } from "/page/key.js";
import { state } from "/page/states.js";

const PASSAGES = 3;
const BEFORE = 50;
// Answers with a lower score are not shown.
const MIN_SCORE = 0.01;

function fact(name, value) {
  return element("li", {}, `${name} `, element("b", {}, String(value)));
}

function span_in_context(answer) {
  return [[answer.start - answer.context_start, answer.end - answer.context_start]];
}

// The passage, starting a few words before the answer. A row shows as much of it as fits.
function line(answer) {
  const start = units(answer.context, answer.start - answer.context_start);
  const end = units(answer.context, answer.end - answer.context_start);
  const first = start > BEFORE ? answer.context.indexOf(" ", start - BEFORE) + 1 : 0;
  const from = first > start ? start : first;
  return [from ? "… " : "", answer.context.slice(from, start), element("mark", {}, answer.context.slice(start, end)),
    answer.context.slice(end)];
}

function origin(found, collection) {
  return element("p", { class: "path" }, link_to(found, collection),
    found.source ? element("span", {}, ` · ${source_of(found.source)}`) : null,
    link_to_text(found, collection));
}

// Links to other documents with the same answer.
function also(answer, collection) {
  const mentions = answer.also_in || [];
  if (!mentions.length) return null;
  const links = mentions.flatMap((mention, at) => [at ? " · " : "", link_to(mention, collection)]);
  return element("p", { class: "path" }, "Also in ", ...links);
}

function best(answer, collection) {
  return element("article", { class: "answer" },
    element("p", { class: "found" }, answer.answer),
    element("p", { class: "sentence" }, ...marked(answer.context, span_in_context(answer))),
    origin(answer, collection),
    also(answer, collection),
    element("p", { class: "muted" }, `${percent(answer.score)} sure`));
}

function others(answers, collection) {
  if (!answers.length) return null;
  const rows = answers.map((answer) => element("li", {},
    element("p", {}, element("b", {}, answer.answer), element("span", { class: "muted" }, ` ${percent(answer.score)}`)),
    element("p", { class: "line" }, ...line(answer)),
    origin(answer, collection),
    also(answer, collection)));
  return element("section", {}, element("h2", {}, "Other possible answers"), element("ol", { class: "others" }, ...rows));
}

async function closest_passages(question, collection, signal) {
  const query = new URLSearchParams({ q: question, top_k: String(PASSAGES), context: "1" });
  if (collection) query.set("collection", collection);
  const response = await ask_service(`/search?${query}`, { signal });
  if (!response.ok) return null;
  const rows = (await response.json()).hits.map((hit) => {
    const shown = hit.passage || hit;
    const spans = hit.highlights.map((span) => [span.start - shown.start, span.end - shown.start]);
    return element("li", {}, element("p", {}, ...marked(shown.text, spans)), origin(hit, collection));
  });
  if (!rows.length) return null;
  return element("section", {}, element("h2", {}, "The closest passages"), element("ol", { class: "others" }, ...rows));
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

// A shard that did not answer may have a better answer.
function partial(index) {
  if (!index.partial) return null;
  return element("p", { class: "partial", role: "note" },
    `The result is partial: ${index.missing.length} of ${counted(index.shards_total, "shard")} did not answer `
    + `(${index.missing.join(", ")}).`);
}

export async function result(found, seen, collection, signal) {
  const shown = [partial(found.index)];
  if (found.answerable) {
    shown.push(best(found.answers[0], collection), others(found.answers.slice(1).filter((answer) => answer.score >= MIN_SCORE), collection));
  } else if (found.usage.candidates) {
    shown.push(state("No answer in these documents",
      `${counted(found.usage.sentences_read, "passage")} read; none answers the question (${percent(found.no_answer_score)} sure).`));
    shown.push(await closest_passages(found.question, collection, signal));
  } else {
    shown.push(state("No answer in these documents", "No document contains a word of this question."));
  }
  return [...shown, times(found, seen)].filter(Boolean);
}
