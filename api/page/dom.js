// Creates elements, and converts text offsets.

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Converts an offset in code points, which the service counts, to UTF-16 units, which JavaScript counts. A text may have
// millions of code points, so this function does not copy the text.
export function units(text, points) {
  let at = 0;
  for (let left = points; left > 0 && at < text.length; left -= 1) at += text.codePointAt(at) > 0xffff ? 2 : 1;
  return at;
}

export function percent(score) {
  return `${(score * 100).toFixed(score < 0.0995 ? 1 : 0)} %`;
}

export function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
