"""`qa-cluster ask` and `serve`: answers on the terminal, and over HTTP."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from qa_cluster.asking.questions import AskLimits, AskOptions, check_question
from qa_cluster.cluster_client import ClusterClient
from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError, RequestError
from qa_cluster.types import AskResult

from ..servers import ports, service
from . import console
from .session import Session, cluster_url, with_cluster


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("ask")(ask)
    app.command("serve")(serve)


def ask(
    context: typer.Context,
    question: Annotated[str, typer.Argument(help="The question.")],
    top_k: Annotated[int, typer.Option(help="How many answers at most.", min=1)] = 3,
    model: Annotated[
        str, typer.Option(help="Which loaded model reads, an id or id@revision.", show_default="the default one")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON, as the REST service answers.")] = False,
) -> None:
    """Ask the cluster a question. Exits 0 also when the documents hold no answer.

    Examples:

        qa-cluster ask "When is a finally clause executed?" --json | jq -r '.answers[0].answer'

        qa-cluster ask "When is a finally clause executed?" --model my-reader
    """
    session: Session = context.obj
    settings = session.load().settings
    _check(settings, question, AskOptions(top_k=top_k, model=model))
    settings = with_cluster(settings)
    with ClusterClient(settings) as client:
        result = client.ask(question, top_k=top_k, model=model)
    if json:
        console.say_json(result.to_dict())
    else:
        show(result)


def _check(settings: Settings, question: str, options: AskOptions) -> None:
    """Refuse, before anything is asked, what the cluster would refuse: that is wrong usage."""
    limits = AskLimits(question_max_chars=settings.question_max_chars, top_k_max=settings.top_k_max)
    try:
        check_question(question, options, limits)
    except RequestError as error:
        raise typer.BadParameter(str(error)) from error


def show(result: AskResult) -> None:
    """Print the answers; not those that nothing speaks for, unless there is no better one."""
    if not result.answerable:
        console.say("no answer in the documents")
    console.table(
        [
            {
                "answer": " ".join(answer.answer.split()),
                "score": f"{answer.score:.2f}",
                "document": answer.document_id,
                "sentence": " ".join(answer.context.split()),
            }
            for answer in result.answers
            if answer.rank == 1 or f"{answer.score:.2f}" != "0.00"
        ],
        right=("score",),
        minor=("document",),
    )
    console.say(f"{result.timings_ms.total:.1f} ms, cache: {result.cache.tier}")


def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", show_default="8080")] = None,
) -> None:
    """Run the REST service, with a page to ask from at /, until Ctrl-C.

    Example: qa-cluster serve --port 9000
    """
    session: Session = context.obj
    loaded = session.load(http_host=host, http_port=port)
    _need_port(loaded.settings)
    url = cluster_url(loaded.settings)
    command = service.command_line()
    # The service takes this process' place, so whoever ends this command ends the service.
    os.execve(command[0], command, dict(service.environment(loaded, url)))


def _need_port(settings: Settings) -> None:
    try:
        ports.bind_once(settings.http_port, settings.http_host)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {settings.http_host}:{settings.http_port}: {error.strerror or error}; choose another"
            " address with --host and --port (settings 'http_host' and 'http_port')"
        ) from error
