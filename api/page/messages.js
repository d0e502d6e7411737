// Texts for users about errors of the service. Operators find the cause in the problem document.

const BY_STATUS = {
  404: ["Not found", "This document does not exist any more."],
  408: ["That took too long", "The question did not arrive in time. Please try again."],
  413: ["Too much to show", "The result is too large to show here."],
  422: ["The question was not understood", "Please change it and try again."],
  429: ["Too many questions", "There were too many questions in a short time."],
  503: ["Not available right now", "The search is busy or starting."],
  504: ["That took too long", "No answer was found in the time allowed."],
};
const UNKNOWN = ["Something went wrong", "The search failed. Please try again later."];

// [title, text] for a problem document.
export function words_of(problem, retry_seconds = null) {
  if (problem.code === "CROSS_SITE") return ["This site may not use the search", "Its operator must allow this site."];
  const detail = String(problem.detail || "");
  const [title, text] = problem.status === 404 && /^no such collection/.test(detail)
    ? ["Not found", "This collection does not exist."]
    : problem.status === 422 && /characters/.test(detail)
      ? ["The question is too long", "Please ask a shorter question."]
      : BY_STATUS[problem.status] || UNKNOWN;
  return [title, retry_seconds ? `${text} Please try again in ${retry_seconds} s.` : text];
}

// The cause for operators, as one line per fact.
export function cause_of(problem) {
  return [
    [problem.status, problem.code].filter(Boolean).join(" "),
    problem.detail,
    problem.request_id ? `Request ${problem.request_id}` : "",
  ].filter(Boolean).map(String);
}
