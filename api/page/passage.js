// Shows a part of a text with its structure: paragraphs, headings, list items and code. Offsets are UTF-16 units.

import { element, units } from "/page/dom.js";

// A line of code is indented. A table in plain text is shown as code, because its lines have a fixed width.
const CODE = /^(?: {4}|\t|\|.*\|\s*$|\+[-=+]{3})/;
const ITEM = /^ {0,3}(?:[-*•–]|\d{1,3}[.)])\s/;
// Lines of these lengths were wrapped by an editor.
const WRAPPED_MIN = 50;
const WRAPPED_MAX = 100;
const RAGGED = 6;
const HEADING_MAX = 80;

// The blocks of a text: { kind, from, to } with kind "paragraph", "item" or "code". White space between two blocks is in
// no block. A blank line ends a paragraph or an item. Code is indented by four spaces or a tab, and can have blank lines.
export function blocks(text) {
  const found = [];
  let last = null;
  let blank = true;
  for (let from = 0; from < text.length;) {
    const end = text.indexOf("\n", from);
    const to = end < 0 ? text.length : end;
    const line = text.slice(from, to);
    if (!line.trim()) {
      blank = true;
    } else {
      const kind = CODE.test(line) ? "code" : ITEM.test(line) ? "item" : "paragraph";
      const continues = last !== null && (kind === "code" ? last.kind === "code" : !blank && kind === "paragraph" && last.kind !== "code");
      if (continues) last.to = to;
      else found.push(last = { kind, from, to });
      blank = false;
    }
    from = to + 1;
  }
  return found;
}

// In a passage of the service, spaces replace the white space between sentences. This function guesses the line ends: at
// two or more spaces, and before the mark of a list item. It joins the lines of a sentence that has a line end between two
// words. The length of the text does not change.
export function with_lines(context) {
  return context.replace(/(?<=[a-z,;])\n(?=[a-z])/g, " ").split("\n").map((line) => (CODE.test(line) ? line : line
    .replace(/(?<=\S) {2,}(?=\S)/g, (gap) => (gap.length === 5 ? "\n    " : `\n\n${gap.slice(2)}`))
    .replace(/(?<=[.:;!?]) (?=(?:[-•]|\d{1,2}[.)]) \S)/g, "\n"))).join("\n");
}

// The part of a text around a span, of about `limit` units: { from, to }. If whole blocks fit, the part consists of whole
// blocks. Otherwise it starts and ends between two words.
export function around(text, start, end, limit) {
  const all = blocks(text);
  let first = all.findIndex((block) => block.to > start);
  if (first < 0) return { from: 0, to: text.length };
  let last = first;
  while (last + 1 < all.length && all[last + 1].from < end) last += 1;
  const whole = (low, high) => all[high].to - all[low].from <= Math.max(limit, end - start);
  if (!whole(first, last)) {
    const [low, high] = [all[first].from, all[last].to];
    return all[first].kind === "code" ? lines_within(text, low, high, start, end, limit) : within(text, low, high, start, end, limit);
  }
  for (let grows = true; grows;) {
    grows = false;
    if (first > 0 && whole(first - 1, last)) {
      first -= 1;
      grows = true;
    }
    if (last + 1 < all.length && whole(first, last + 1)) {
      last += 1;
      grows = true;
    }
  }
  // a heading belongs to the text below it
  while (all[last].from >= end && is_heading(text.slice(all[last].from, all[last].to), all[last].kind)) last -= 1;
  return { from: all[first].from, to: all[last].to };
}

function is_heading(block, kind) {
  return kind === "paragraph" && block.length <= HEADING_MAX && !block.includes("\n") && !/[.!?:;,]["”’)]?$/.test(block);
}

// The text with spaces in place of the line ends at which an editor has wrapped the lines of a block: the line ends before
// words that would not have fitted into the line.
function unwrapped(text, block) {
  const lines = text.slice(block.from, block.to).split("\n");
  const width = Math.max(...lines.map((line) => line.length));
  if (lines.length < 2 || width < WRAPPED_MIN || width > WRAPPED_MAX) return text;
  const ends = lines.slice(1).map((line, at) =>
    (lines[at].length + 1 + line.trimStart().search(/\s|$/) >= width - RAGGED ? " " : "\n"));
  return text.slice(0, block.from) + lines.map((line, at) => line + (ends[at] || "")).join("");
}

// Whole lines of code around a span.
function lines_within(text, low, high, start, end, limit) {
  let from = Math.max(low, text.lastIndexOf("\n", start - 1) + 1);
  const line_end = (at) => (text.indexOf("\n", at) < 0 ? high : Math.min(high, text.indexOf("\n", at)));
  let to = line_end(end);
  for (let grows = true; grows;) {
    grows = false;
    const before = from > low ? Math.max(low, text.lastIndexOf("\n", from - 2) + 1) : from;
    if (before < from && to - before <= limit) {
      from = before;
      grows = true;
    }
    const after = to < high ? line_end(to + 1) : to;
    if (after > to && after - from <= limit) {
      to = after;
      grows = true;
    }
  }
  return { from, to };
}

function within(text, low, high, start, end, limit) {
  const spare = Math.max(0, limit - (end - start));
  let from = Math.max(low, start - Math.ceil(spare / 2));
  const to_at = Math.min(high, end + spare - (start - from));
  if (to_at === high) from = Math.max(low, start - (spare - (high - end)));
  if (from > low) {
    const sentence = text.slice(from, start).search(/[.!?:]["”’)]?\s+(?=\S)/);
    const at = sentence >= 0 && sentence < (start - from) / 2
      ? from + sentence + text.slice(from + sentence).search(/\s/)
      : from + text.slice(from, start).search(/\s/);
    from = at < from ? start : at + text.slice(at).search(/\S/);
  }
  let to = to_at;
  if (to < high) {
    const at = text.slice(end, to).search(/\s\S*$/);
    to = at < 0 ? end : end + at;
  }
  return { from, to };
}

function pieces(text, from, to, spans) {
  const parts = [];
  let at = from;
  for (const [first, last] of spans) {
    const start = Math.max(at, Math.min(first, to));
    const end = Math.max(start, Math.min(last, to));
    if (start === end) continue;
    parts.push(text.slice(at, start), element("mark", {}, text.slice(start, end)));
    at = end;
  }
  return [...parts, text.slice(at, to)];
}

// An element with code, without the common indentation of its lines. `spans` are marked.
function code(text, block, spans) {
  const lines = text.slice(block.from, block.to).split("\n");
  const margin = Math.min(...lines.filter((line) => line.trim()).map((line) => line.search(/\S/)));
  const node = element("code");
  let at = block.from;
  lines.forEach((line, number) => {
    const from = Math.min(at + margin, at + line.length);
    node.append(number ? "\n" : "", ...pieces(text, from, at + line.length, spans));
    at += line.length + 1;
  });
  return element("pre", {}, node);
}

// The elements of a part of a text. `headings` maps offsets of blocks to { level, id }. `spans` are marked.
export function passage(text, { spans = [], from = 0, to = text.length, headings = new Map() } = {}) {
  const nodes = [];
  for (const block of blocks(text)) {
    if (block.to <= from || block.from >= to) continue;
    const cut_start = block.from < from;
    const cut_end = block.to > to;
    const shown = { kind: block.kind, from: Math.max(from, block.from), to: Math.min(to, block.to) };
    const heading = headings.get(block.from);
    if (heading) {
      nodes.push(element(`h${heading.level}`, heading.id ? { id: heading.id } : {}, ...pieces(text, shown.from, shown.to, spans)));
    } else if (block.kind === "code") {
      nodes.push(code(text, shown, spans));
    } else {
      const parts = pieces(unwrapped(text, block), shown.from, shown.to, spans);
      nodes.push(element("p", block.kind === "item" ? { class: "item" } : {},
        cut_start ? "… " : "", ...parts, cut_end ? " …" : ""));
    }
  }
  return nodes;
}

// The elements of a passage around a span. `start` and `end` are code points in `text`.
export function passage_around(text, start, end, limit, headings = new Map()) {
  const first = units(text, start);
  const last = first + units(text.slice(first), end - start);
  return passage(text, { spans: [[first, last]], headings, ...around(text, first, last, limit) });
}

// The elements of the passage around an answer. The passage comes from the document of the answer, or from the answer if
// the document is null.
export function passage_of(answer, document, headings, limit) {
  if (document) return passage_around(document.text, answer.start, answer.end, limit, headings);
  const start = answer.start - answer.context_start;
  return passage_around(with_lines(answer.context), start, start + answer.end - answer.start, limit);
}

// Scrolls code with wide lines to the answer.
export function show_marks(root) {
  for (const mark of root.querySelectorAll("pre mark")) {
    const pre = mark.closest("pre");
    if (mark.offsetLeft + mark.offsetWidth > pre.clientWidth) pre.scrollLeft = mark.offsetLeft - pre.clientWidth / 3;
  }
}
