// Asks whether an answer was right or which passage is better, and sends the reply to the service.

import { element } from "/page/dom.js";
import { path_of } from "/page/found.js";

const MAX_CONTEXT = 8000;
const MAX_ANSWER = 2000;
const MAX_PLACES = 8;

// A passage that may be better: the passage of another answer, or a sentence of a search.
function place_of(found) {
  return { answer: found.answer || found.text, context: found.context || found.text, document_id: found.document_id, path: path_of(found) };
}

// The passages that the service accepts, without duplicates.
function usable(places) {
  const seen = new Set();
  return places.filter(({ answer, context, document_id }) => {
    const name = JSON.stringify([document_id, context]);
    return answer.length <= MAX_ANSWER && context.length <= MAX_CONTEXT && context.includes(answer) && !seen.has(name) && seen.add(name);
  }).slice(0, MAX_PLACES);
}

class Feedback {
  constructor(body, has_answer, send, find) {
    this.body = body;
    this.has_answer = has_answer;
    this.send = send;
    this.find = find;
    this.box = element("div", { class: "feedback" });
    this.box.append(...this.question());
  }

  button(content, action) {
    const node = element("button", { type: "button" }, ...content);
    node.addEventListener("click", action);
    return node;
  }

  // Replaces the contents. The focus stays in the box.
  show(...nodes) {
    this.box.replaceChildren(...nodes);
    this.box.querySelector("textarea, button, [tabindex]").focus();
  }

  say(text) {
    this.show(element("p", { role: "status", tabindex: "-1" }, text));
  }

  question() {
    const better = this.button([this.has_answer ? "Another passage is better" : "Show the right passage"], () => this.offer());
    if (!this.has_answer) return [element("p", {}, "Do the documents have the answer? ", better)];
    return [element("p", {}, "Was this right? ", this.button(["Yes"], () => this.reply({ verdict: "right" })), " ",
      this.button(["No"], () => this.reply({ verdict: "wrong" })), " ", better)];
  }

  async reply(given) {
    for (const each of this.box.querySelectorAll("button, textarea")) each.disabled = true;
    let sent = false;
    try {
      sent = (await this.send(JSON.stringify({ ...this.body, ...given }))).ok;
    } catch {
      // the message below reports the failure
    }
    this.say(sent ? "Thank you." : "Your reply could not be sent.");
  }

  // Offers the other answers and the sentences of a search.
  async offer() {
    this.say("Searching …");
    let places = [];
    try {
      places = usable((await this.find()).map(place_of));
    } catch {
      // the message below also covers a failed search
    }
    if (!places.length) {
      this.say("No other passage was found.");
      return;
    }
    const rows = places.map((place) => element("li", {},
      this.button([element("span", { class: "path" }, place.path), " ", place.context], () => this.shorten(place))));
    this.show(element("p", {}, "Which passage answers the question?"), element("ul", { class: "places" }, ...rows),
      this.button(["Cancel"], () => this.show(...this.question())));
  }

  // Asks the user to shorten a passage to the words of the answer.
  shorten(place) {
    const field = element("textarea", { rows: "3", "aria-label": "Answer", spellcheck: "false" });
    field.value = place.answer;
    const wrong = element("p", { role: "alert" });
    this.show(element("p", {}, "Keep only the words that are the answer:"), field, wrong,
      this.button(["Send"], () => {
        const answer = field.value.trim();
        if (answer && place.context.includes(answer)) {
          this.reply({ verdict: "better", better_document_id: place.document_id, better_answer: answer, better_context: place.context });
        } else {
          wrong.textContent = "Please use only words of this passage, and do not change them.";
          field.focus();
        }
      }), " ", this.button(["Cancel"], () => this.show(...this.question())));
  }
}

// Returns the feedback box of an answer, or of a result without an answer (null). `send` posts a body and returns the
// response. `find` returns other answers and hits of a search, whose passages may be better.
export function feedback(question, answer, collection, send, find) {
  if (answer && answer.answer.length > MAX_ANSWER) return null;
  const body = { question };
  if (answer) body.answer = answer.answer;
  if (answer && answer.document_id) body.document_id = answer.document_id;
  if (answer && answer.context && answer.context.length <= MAX_CONTEXT) body.context = answer.context;
  if (collection) body.collection = collection;
  return new Feedback(body, Boolean(answer), send, find).box;
}
