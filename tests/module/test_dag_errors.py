"""AI.DAGEXECUTE: the errors of refused commands, which start no job."""

from __future__ import annotations

import pytest
import redis

from tests.module.dags import dag, prepare, run

MODEL = "AI.MODELEXECUTE m INPUTS 1 a OUTPUTS 1 b"
# Errors, and commands (without their first word) that cause them.
REFUSED = {
    "missing arguments for 'AI.DAGEXECUTE' command": ["", "LOAD 1"],
    "AI.DAGEXECUTE and AI.DAGEXECUTE_RO commands must contain at least one out of ROUTING, LOAD, PERSIST keywords": [
        "|> AI.TENSORSET x INT8 1",
        "TIMEOUT 1 |> AI.TENSORSET x INT8 1",
    ],
    # LOAD
    "missing arguments after LOAD keyword in DAG command": ["TIMEOUT 1 LOAD"],
    "invalid or negative value found in number of keys to LOAD": ["LOAD x a |>", "LOAD -1 a |>"],
    "number of keys to LOAD into DAG does not match the number of given arguments": ["LOAD 9 a |>"],
    "tensor key is empty or in a different shard": ["LOAD 1 none |> AI.TENSORGET none"],
    "Invalid DAG command. Unexpected argument:  LOAD": [f"LOAD 1 a LOAD 1 c |> {MODEL}"],
    "Invalid DAG command. Unexpected argument:  c": [f"LOAD 1 a c |> {MODEL}"],
    "Invalid DAG command. Unexpected argument:  TENSORSET": ["TENSORSET x INT8 1"],
    # PERSIST
    "missing arguments after PERSIST keyword in DAG command": ["LOAD 1 a PERSIST"],
    "invalid or negative value found in number of keys to PERSIST": ["PERSIST x a |>"],
    "number of keys to PERSIST after DAG execution does not match the number of given arguments": ["PERSIST 9 a |>"],
    "PERSIST keys must be unique": [f"LOAD 1 a PERSIST 2 a a |> {MODEL}"],
    "PERSIST key cannot be found in DAG": [f"LOAD 1 a PERSIST 1 x |> {MODEL}"],
    # ROUTING, TIMEOUT
    "Missing ROUTING value": ["LOAD 1 a ROUTING"],
    "No value provided for TIMEOUT": ["ROUTING a TIMEOUT"],
    "Invalid value for TIMEOUT": ["ROUTING a TIMEOUT x"],
    # the steps
    "DAG is empty": ["LOAD 1 a", "LOAD 1 a |>"],
    "Unsupported command within DAG": [f"LOAD 1 a |> |> {MODEL}", f"LOAD 1 a |> {MODEL} |>", "LOAD 1 a |> GET a"],
    "Deprecated AI.MODELRUN cannot be used in AI.DAGEXECUTE command": ["LOAD 1 a |> AI.MODELRUN m"],
    "Deprecated AI.SCRIPTRUN cannot be used in AI.DAGEXECUTE command": ["LOAD 1 a |> AI.SCRIPTRUN m"],
    "INPUT key cannot be found in DAG": [
        f"ROUTING a |> {MODEL}",
        "ROUTING a |> AI.TENSORGET a",
        f"LOAD 1 a |> {MODEL} |> AI.MODELEXECUTE m INPUTS 1 x OUTPUTS 1 b",
        "LOAD 1 a |> AI.SCRIPTEXECUTE s f INPUTS 1 x",
    ],
    "TIMEOUT not allowed within a DAG command": [
        f"LOAD 1 a |> {MODEL} TIMEOUT 5",
        "LOAD 1 a |> AI.SCRIPTEXECUTE s f INPUTS 1 a TIMEOUT 1",
    ],
    # tensors
    "wrong number of arguments for 'AI.TENSORSET' command": [
        "LOAD 1 a |> AI.TENSORSET",
        "LOAD 1 a |> AI.TENSORSET x INT8",
    ],
    "invalid or negative value found in tensor shape": ["LOAD 1 a |> AI.TENSORSET x INT8 0"],
    "wrong number of arguments for 'AI.TENSORGET' command": [
        "LOAD 1 a |> AI.TENSORGET",
        "LOAD 1 a |> AI.TENSORGET a META BLOB BLOB",
    ],
    "unsupported data format": ["LOAD 1 a |> AI.TENSORGET a TEXT"],
    # models and scripts
    "wrong number of arguments for 'AI.MODELEXECUTE' command": [
        f"LOAD 1 a |> {' '.join(MODEL.split()[:length])}" for length in range(1, 8)
    ],
    "model key is empty": ["LOAD 1 a |> AI.MODELEXECUTE none INPUTS 1 a OUTPUTS 1 b"],
    "Number of keys given as INPUTS here does not match model definition": [
        "LOAD 1 a |> AI.MODELEXECUTE m INPUTS 2 a a OUTPUTS 1 b"
    ],
    "wrong number of arguments for 'AI.SCRIPTEXECUTE' command": ["LOAD 1 a |> AI.SCRIPTEXECUTE s"],
    "script key is empty": ["LOAD 1 a |> AI.SCRIPTEXECUTE none f"],
}


def refused(client: redis.Redis, command: str) -> str:
    """The error of a command that must not become a job."""
    prepare(client)
    submitted = client.info("everything")["qa_jobs_dag.run"]["submitted"]
    with pytest.raises(redis.ResponseError) as error:
        client.execute_command("AI.DAGEXECUTE", *command.split())
    assert client.info("everything")["qa_jobs_dag.run"]["submitted"] == submitted
    return str(error.value)


@pytest.mark.parametrize(("command", "text"), [(c, text) for text, commands in REFUSED.items() for c in commands])
def test_bad_input(shared_ai: redis.Redis, command: str, text: str) -> None:
    assert refused(shared_ai, command) == text


@pytest.mark.parametrize(
    "command", ["LOAD 1 m |> AI.TENSORGET m", "LOAD 1 a |> AI.MODELEXECUTE s INPUTS 1 a OUTPUTS 1 b"]
)
def test_key_of_another_type(shared_ai: redis.Redis, command: str) -> None:
    assert refused(shared_ai, command).startswith("WRONGTYPE")


def test_unsupported_commands_say_so(shared_ai: redis.Redis) -> None:
    for name in ("AI.DAGRUN", "AI.DAGRUN_RO"):
        with pytest.raises(
            redis.ResponseError, match=f"^{name} is left out: use {name.replace('RUN', 'EXECUTE')} with"
        ):
            shared_ai.execute_command(name, "|>", "AI.TENSORSET", "x", "INT8", 1)


def test_key_positions(shared_ai: redis.Redis) -> None:
    script = ["AI.SCRIPTEXECUTE", "s", "f", "KEYS", 1, "k", "INPUTS", 1, "local"]
    words = dag(
        "LOAD", 2, "a", "b", "PERSIST", 1, "p", "ROUTING", "r", run("m", "local", "local"), script, ["AI.MODELEXECUTE"]
    )
    assert shared_ai.execute_command("COMMAND", "GETKEYS", *words) == [b"a", b"b", b"p", b"r", b"m", b"s", b"k"]
