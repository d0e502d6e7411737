"""Turns errors of the service into texts with advice for a language model and its user."""

from __future__ import annotations

from difflib import get_close_matches

from qa_cluster.client import (
    AccessDenied,
    ClusterError,
    DeadlineExceeded,
    InputTooLong,
    InvalidInput,
    LimitReached,
    QAError,
    VersionConflict,
)
from qa_cluster.errors import RequestError

from .bounds import MAX_ERROR_CHARS, shortened

FILTER_HELP = "filter is a list of conditions such as year>=2020, lang=en,de (one of them), lang!=en or lang=null"


def explained(error: QAError, *, over_http: bool) -> str:
    """Return the text of an error, followed by advice for the caller if there is some.

    `over_http` says whether MCP requests arrive over HTTP, where each caller sends its own API key.
    """
    text = shortened(" ".join(str(error).split()), MAX_ERROR_CHARS)
    advice = _advice(error, text, over_http)
    return f"{text.rstrip('.')}. {advice}" if advice else text


def _advice(error: QAError, text: str, over_http: bool) -> str:
    retry = f"Retry in {max(1, round(error.retry_after_seconds or 1))} s"
    if isinstance(error, RequestError):
        return _advice_about_request(error, text, over_http)
    if isinstance(error, LimitReached):
        return f"{retry}: this is a limit of the API key."
    if isinstance(error, DeadlineExceeded):
        return "Retry, or ask for less: a smaller top_k, or a filter."
    if isinstance(error, ClusterError) and "cannot be reached" in text:
        return "Start the service, or correct the setting service_url (QA_SERVICE_URL), and retry."
    return f"{retry}." if error.retryable else "Ask the operator of the service."


def _advice_about_request(error: RequestError, text: str, over_http: bool) -> str:
    if isinstance(error, AccessDenied):
        if over_http:
            return (
                "The MCP server passes on the Authorization header of its client: set it to `Bearer qac_...` in the"
                " settings of the MCP client, with a key that has the required right."
            )
        return (
            "Set the setting service_api_key (QA_SERVICE_API_KEY) of `qa-cluster mcp` to a key that has the required"
            " right."
        )
    if isinstance(error, VersionConflict):
        return "Pass overwrite=true to replace the document, or choose a different id."
    if isinstance(error, InputTooLong):
        return "Shorten it." if "shorten" not in text and "divide" not in text else ""
    if isinstance(error, InvalidInput) and "filter" in text:
        return f"Correct the filter: {FILTER_HELP}."
    return ""


def unknown_collection(name: str, known: list[str]) -> str:
    """Return the error text for the missing collection `name`. If a name in `known` is similar, suggest this name."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return f"collection {name!r} does not exist. {hint}list_collections names the collections."


def unknown_argument(tool: str, name: str, known: list[str]) -> str:
    """Return the error text for the unknown argument `name` of a tool.

    `known` are the names of the tool's arguments. If one of these names is similar, suggest this name.
    """
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{tool} has no argument {shortened(name, 100)!r}: {hint}It has {', '.join(known)}."
