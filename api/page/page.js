"use strict";

const form = document.getElementById("ask");
const input = document.getElementById("question");
const result = document.getElementById("result");
const status_line = document.getElementById("status");
const refresh = document.getElementById("refresh");
const all_candidates = document.getElementById("all");
const collections = document.getElementById("collection");
const history_of_questions = [];
let position = -1;
let running = null;

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Offsets are in code points, JavaScript's strings in UTF-16 units.
function highlighted(answer) {
  const points = Array.from(answer.context);
  const start = answer.start - answer.context_start;
  const end = answer.end - answer.context_start;
  return [points.slice(0, start).join(""), element("mark", {}, points.slice(start, end).join("")), points.slice(end).join("")];
}

function percent(score) {
  return `${(score * 100).toFixed(score < 0.0995 ? 1 : 0)} %`;
}

function fact(name, value) {
  return element("li", {}, `${name} `, element("b", {}, String(value)));
}

function heading(answer) {
  const path = [answer.title, ...answer.section].filter(Boolean).join(" > ");
  return path ? element("p", { class: "path" }, path) : null;
}

function place(source) {
  if (source.line) return `${source.file}, line ${source.line}`;
  return source.page ? `${source.file}, page ${source.page}` : source.file;
}

function facts(answer) {
  return element("ul", { class: "facts" },
    fact("document", answer.title ? `${answer.title} (${answer.document_id})` : answer.document_id),
    answer.source ? fact("source", place(answer.source)) : null,
    fact("characters", `${answer.start}–${answer.end}`),
    fact("probability", percent(answer.score)),
    fact("read by shard", answer.shard));
}

function best(answer) {
  return element("article", { class: "answer" },
    element("p", { class: "found" }, answer.answer),
    heading(answer),
    element("p", { class: "sentence" }, ...highlighted(answer)),
    facts(answer));
}

function others(answers) {
  if (!answers.length) return null;
  const list = element("ol", { class: "others" });
  for (const answer of answers) {
    list.append(element("li", {}, heading(answer), element("p", {}, ...highlighted(answer)), facts(answer)));
  }
  return element("section", {}, element("h2", {}, "Runner-up answers"), list);
}

function times(found, seen) {
  const timings = found.timings_ms;
  const parts = [["cache", "cache", timings.cache], ["rank", "rank", timings.rank]];
  timings.read.forEach((time, wave) => parts.push([`read-${Math.min(wave + 1, 3)}`, `read, wave ${wave + 1}`, time]));
  const known = parts.reduce((sum, part) => sum + part[2], 0);
  parts.push(["rest", "rest", Math.max(0, timings.total - known)]);
  const bar = element("div", { class: "bar", role: "img", "aria-label": `${timings.total.toFixed(2)} milliseconds in the service` });
  const legend = element("div", { class: "legend" });
  for (const [kind, name, time] of parts) {
    if (time <= 0) continue;
    const part = element("span", { class: kind });
    part.style.flexGrow = time;
    bar.append(part);
    legend.append(element("span", {}, element("i", { class: kind }), `${name} ${time.toFixed(2)} ms`));
  }
  const cache = found.cache.status === "hit"
    ? `from the ${found.cache.tier === "near" ? "near cache" : "answer cache of the shards"}, ${found.cache.age_s} s old`
    : `read anew (${found.cache.status})`;
  return element("section", {}, element("h2", {}, "Where the time went"), bar, legend,
    element("ul", { class: "facts" },
      fact("in the service", `${timings.total.toFixed(2)} ms`),
      fact("seen from here", `${seen.toFixed(1)} ms`),
      fact("answer", cache),
      fact("sentences read", `${found.usage.sentences_read} of ${found.usage.candidates}`),
      fact("shards", `${found.index.shards_answered} of ${found.index.shards_total}`),
      fact("model", `${found.model.id} ${found.model.revision} ${found.model.precision}`)));
}

function state(title, text, wrong) {
  return element("div", { class: wrong ? "state wrong" : "state", role: wrong ? "alert" : "note" },
    element("h2", {}, title), element("p", {}, text));
}

function show(found, seen) {
  if (found.answerable) {
    result.replaceChildren(...[best(found.answers[0]), others(found.answers.slice(1)), times(found, seen)].filter(Boolean));
  } else {
    const text = found.usage.candidates
      ? `The model read ${found.usage.sentences_read} sentences and found no answer in them (${percent(found.no_answer_score)} sure).`
      : "No stored sentence shares a word with this question.";
    result.replaceChildren(...[state("No answer in these documents", text, false), times(found, seen)].filter(Boolean));
  }
}

function show_problem(problem) {
  const again = problem.retry ? ` Try again in ${problem.retry} s.` : "";
  const where = problem.request_id ? ` (${problem.code}, request ${problem.request_id})` : "";
  result.replaceChildren(state(problem.title, `${problem.detail}.${again}${where}`, true));
}

async function ask(question) {
  if (running) running.abort();
  const controller = running = new AbortController();
  result.setAttribute("aria-busy", "true");
  const query = new URLSearchParams({ question, top_k: "5" });
  if (collections.value) query.set("collection", collections.value);
  if (all_candidates.checked) query.set("waves", "false");
  if (refresh.checked) query.set("cache", "refresh");
  const begun = performance.now();
  try {
    const response = await fetch(`/qa?${query}`, { signal: controller.signal, headers: { accept: "application/json" } });
    const body = await response.json();
    if (response.ok) show(body, performance.now() - begun);
    else show_problem({ ...body, retry: response.headers.get("retry-after") });
  } catch (error) {
    if (error.name === "AbortError") return;
    show_problem({ title: "The service cannot be reached", detail: String(error.message || error) });
  } finally {
    if (running === controller) {
      running = null;
      result.setAttribute("aria-busy", "false");
    }
  }
}

async function show_status() {
  try {
    const body = await (await fetch("/readyz")).json();
    const ready = body.shards ? body.shards.filter((shard) => shard.ready).length : 0;
    status_line.textContent = body.ready ? `ready, ${ready} shards` : `not ready: ${body.detail || `${ready} shards`}`;
  } catch {
    status_line.textContent = "the service cannot be reached";
  }
}

// The choice is offered only if there is one; the default collection needs no name.
async function show_collections(wanted) {
  try {
    const found = (await (await fetch("/collections")).json()).data.filter((each) => each.state !== "deleting");
    collections.replaceChildren(...found.map((each) => element("option", { value: each.name === "default" ? "" : each.name },
      `${each.name} (${each.documents})`)));
    if (found.some((each) => each.name === wanted)) collections.value = wanted;
    document.getElementById("of").hidden = found.length < 2;
  } catch {
    document.getElementById("of").hidden = true;
  }
}

function submit(question) {
  if (!question) return;
  if (history_of_questions[0] !== question) history_of_questions.unshift(question);
  position = -1;
  const query = new URLSearchParams({ question });
  if (collections.value) query.set("collection", collections.value);
  history.replaceState(null, "", `?${query}`);
  ask(question);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  submit(input.value.trim());
});

input.addEventListener("keydown", (event) => {
  const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
  if (step === undefined || !history_of_questions.length) return;
  event.preventDefault();
  position = Math.max(-1, Math.min(history_of_questions.length - 1, position + step));
  input.value = position < 0 ? "" : history_of_questions[position];
});

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== input) {
    event.preventDefault();
    input.focus();
    input.select();
  } else if (event.key === "Escape" && running) {
    running.abort();
    result.replaceChildren(state("Stopped", "The question was withdrawn.", false));
  }
});

const given = new URLSearchParams(location.search);
show_collections(given.get("collection")).then(() => {
  if (!given.get("question")) return;
  input.value = given.get("question");
  submit(input.value);
});
collections.addEventListener("change", () => submit(input.value.trim()));
show_status();
setInterval(show_status, 10000);
