// Rows of results in a list of options: the title of the document, and a quote.

import { element, units } from "/page/dom.js";
import { path_of } from "/page/found.js";
import { around } from "/page/passage.js";

export const QUOTE_CHARS = 170;

// A quote around the first marked span. `spans` are code points in `text`.
export function quote(text, spans, limit) {
  const marks = spans.map(([first, last]) => [units(text, first), units(text, last)]);
  const [start, end] = marks.length ? marks[0] : [0, 0];
  const line = text.replace(/\s/g, " ");
  const part = around(line, start, end, limit);
  const nodes = [part.from ? "… " : ""];
  let at = part.from;
  for (const [first, last] of marks) {
    if (first < at || last > part.to) continue;
    nodes.push(line.slice(at, first), element("mark", {}, line.slice(first, last)));
    at = last;
  }
  return [...nodes, line.slice(at, part.to), part.to < line.length ? " …" : ""];
}

export function option(number, attributes, ...children) {
  return element("a", { role: "option", id: `option-${number}`, tabindex: "-1", "aria-selected": "false", ...attributes }, ...children);
}

// The rows of the hits of a search, without duplicate sentences. `shown` has the ids of the sentences that are already on
// the screen; they get no row. `attributes_of` returns the attributes of the link to a hit.
export function rows(hits, attributes_of, shown = []) {
  const seen = new Set();
  const is_new = (hit) => {
    const name = `${hit.collection}\n${hit.document_id}\n${hit.text}`;
    return !shown.includes(hit.passage_id) && !seen.has(name) && seen.add(name);
  };
  return hits.filter(is_new).map((hit, number) =>
    option(number + 1, attributes_of(hit),
      element("span", { class: "path" }, path_of(hit)),
      element("span", { class: "quote" }, ...quote(hit.text, hit.highlights.map((span) => [span.start - hit.start, span.end - hit.start]), QUOTE_CHARS))));
}

// Selects one row of a list, or no row (-1).
export function choose(input, list, number) {
  [...list.children].forEach((row, at) => row.setAttribute("aria-selected", String(at === number)));
  const row = list.children[number];
  if (row) {
    input.setAttribute("aria-activedescendant", row.id);
    row.scrollIntoView({ block: "nearest" });
  } else {
    input.removeAttribute("aria-activedescendant");
  }
}
