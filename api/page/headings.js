// The headings of a document, from the source map that `ingest` stores with it.

const MAX_HEADINGS = 2000;

// The headings in the source map of a document: { from, depth, title } with `from` in code points.
export function headings_of(metadata) {
  const found = [];
  const packed = metadata && metadata._source && metadata._source.sections;
  if (!Array.isArray(packed)) return found;
  let at = 0;
  let path = [];
  for (const entry of packed.slice(0, MAX_HEADINGS)) {
    if (!Array.isArray(entry)) return [];
    const [distance, kept, ...titles] = entry;
    if (!Number.isInteger(distance) || distance < 0 || !Number.isInteger(kept) || kept < 0 || kept > path.length
      || !titles.every((title) => typeof title === "string")) return [];
    at += distance;
    path = [...path.slice(0, kept), ...titles];
    titles.forEach((title, number) => found.push({ from: at, depth: kept + number, title }));
  }
  return found;
}

// The headings of a text by their offset in UTF-16 units. `is_there`: the text contains the heading at this offset.
export function placed(text, headings) {
  const found = new Map();
  let at = 0;
  let points = 0;
  for (const heading of headings) {
    while (points < heading.from && at < text.length) {
      at += text.codePointAt(at) > 0xffff ? 2 : 1;
      points += 1;
    }
    const is_there = text.startsWith(heading.title, at);
    if (is_there || !found.has(at)) found.set(at, { ...heading, id: `section-${found.size + 1}`, is_there });
  }
  return found;
}

// The headings of a document by their offset, with a small level for use in a passage.
export function small_headings(document) {
  const found = placed(document.text, headings_of(document.metadata));
  return new Map([...found].filter(([, heading]) => heading.is_there).map(([at]) => [at, { level: 3 }]));
}
