// Asks whether an answer was right, and sends the reply to the service.

import { element } from "/page/dom.js";

const MAX_CONTEXT = 8000;
const MAX_ANSWER = 2000;

// `send` posts a body and returns the response.
export function feedback(question, answer, collection, send) {
  if (answer.answer.length > MAX_ANSWER) return null;
  const body = { question, answer: answer.answer };
  if (answer.document_id) body.document_id = answer.document_id;
  if (answer.context && answer.context.length <= MAX_CONTEXT) body.context = answer.context;
  if (collection) body.collection = collection;
  const box = element("p", { class: "feedback" }, "Was this right? ");
  for (const [verdict, name] of [["right", "Yes"], ["wrong", "No"]]) {
    const button = element("button", { type: "button" }, name);
    button.addEventListener("click", async () => {
      for (const each of box.querySelectorAll("button")) each.disabled = true;
      let sent = false;
      try {
        sent = (await send(JSON.stringify({ ...body, verdict }))).ok;
      } catch {
        // the message says it
      }
      box.replaceChildren(element("span", { role: "status" }, sent ? "Thank you." : "Your reply could not be sent."));
    });
    box.append(button, " ");
  }
  return box;
}
