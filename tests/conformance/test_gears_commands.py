"""redgrease: scripts and their options, executions, results, settings, cluster and statistics."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import redgrease.data
import redis

from tests.conformance.deployment import Deployment
from tests.harness.polling import eventually

covers = pytest.mark.covers
NOTHING_INSTALLED = "a shard installs nothing while it serves"
INSTALL = "install the package in the environment of the shard's worker (the error names it)"
COUNT = "GB('KeysReader').map(lambda r: r['key']).count().run('{prefix}*')"
SLOW = """
import asyncio
async def wait(record):
    await asyncio.sleep({seconds})
    return record
GB('ShardsIDReader').map(wait).run()
"""


def fill(deployment: Deployment, prefix: str, count: int = 30) -> None:
    """Set `count` keys, spread over the shards."""
    for number in range(count):
        shard = number % deployment.shards
        deployment.raw("SET", deployment.key(f"{prefix}:{number}:", shard), number, shard=shard)


def dropped(gears: Any, execution: Any) -> bool:
    """Drop an execution; return false while a shard still considers it running."""
    try:
        return bool(gears.dropexecution(execution))
    except redis.ResponseError as error:
        assert "not yet finished" in str(error)
        return False


@covers("RG.PYEXECUTE", "a script with run()", "a script without run()")
def test_script(deployment: Deployment, tmp_path: Path) -> None:
    gears = deployment.gears()
    fill(deployment, "n")
    assert gears.pyexecute("x = 1").value is True
    result = gears.pyexecute(COUNT.format(prefix="n"))
    assert result.value == b"30"
    assert result.errors == []
    file = tmp_path / "count.py"
    file.write_text(COUNT.format(prefix="n:1"))
    assert gears.pyexecute(str(file)).value == b"11"
    # the run collects the errors of records and keeps the other records
    failing = "GB('KeysReader').map(lambda r: 1 / (int(r['value']) - 3)).filter(lambda r: False).run('n:*')"
    result = gears.pyexecute(failing)
    assert len(result.errors) == 1
    assert b"ZeroDivisionError" in result.errors[0]


@covers("RG.PYEXECUTE", "a script that fails: the traceback as a list")
def test_script_errors(deployment: Deployment) -> None:
    with pytest.raises(redis.ResponseError) as caught:
        deployment.gears().pyexecute("def f():\n    return 1 / 0\nf()\n")
    lines = caught.value.args
    assert "ZeroDivisionError" in lines[-1]
    assert any("line 2" in line for line in lines)
    with pytest.raises(redis.ResponseError) as caught:
        deployment.gears().pyexecute("GB('NoReader').run()")
    assert "reader does not exists" in caught.value.args[-1]
    with pytest.raises(redis.ResponseError) as caught:
        deployment.gears().pyexecute("GB().run()\nGB().run()")
    assert "Can not run more then 1 executions in a single script" in caught.value.args[-1]


@covers("RG.PYEXECUTE", "UNBLOCKING")
@covers("RG.GETRESULTS", "", "errors")
@covers("RG.GETRESULTSBLOCKING", "")
@covers("RG.DROPEXECUTION", "", "errors")
@covers("RG.DUMPEXECUTIONS", "")
def test_unblocking(deployment: Deployment) -> None:
    gears = deployment.gears()
    fill(deployment, "n")
    execution = gears.pyexecute(COUNT.format(prefix="n"), unblocking=True).value
    assert isinstance(execution, redgrease.data.ExecID)
    assert len(execution.shard_id) == 40
    assert (execution.shard_id == "0" * 40) == (deployment.shards == 1)
    assert gears.getresultsblocking(execution).value == b"30"
    assert gears.getresults(execution).value == b"30"
    (known,) = [entry for entry in gears.dumpexecutions() if entry.executionId == execution]
    assert known.status == redgrease.data.ExecutionStatus.done
    assert known.registered is False
    assert known in gears.dumpexecutions(status="done", registered=False)
    assert eventually(lambda: dropped(gears, known))
    assert execution not in [entry.executionId for entry in gears.dumpexecutions()]
    for call, text in (
        (gears.dropexecution, "execution does not exist"),
        (gears.abortexecution, "execution does not exist"),
        (gears.getresults, "execution plan does not exist"),
        (gears.getresultsblocking, "execution plan does not exist"),
        (gears.getexecution, "execution plan does not exist|execution does not exist"),
    ):
        with pytest.raises(redis.ResponseError, match=text):
            call(execution)


@covers("RG.ABORTEXECUTION", "")
@covers("RG.GETRESULTS", "while it runs")
@covers("RG.DROPEXECUTION", "while it runs")
def test_abort(deployment: Deployment) -> None:
    gears = deployment.gears()
    execution = gears.pyexecute(SLOW.format(seconds=60), unblocking=True).value
    with pytest.raises(redis.ResponseError, match="execution is still running"):
        gears.getresults(execution)
    with pytest.raises(redis.ResponseError, match="can not drop a not yet finished execution, abort it first"):
        gears.dropexecution(execution)
    assert gears.abortexecution(execution)
    eventually(lambda: [e for e in gears.dumpexecutions() if e.executionId == execution and e.status != "running"])
    (entry,) = [entry for entry in gears.dumpexecutions() if entry.executionId == execution]
    assert entry.status in (redgrease.data.ExecutionStatus.aborted, redgrease.data.ExecutionStatus.done)
    assert eventually(lambda: dropped(gears, execution))


@covers("RG.GETEXECUTION", "", "SHARD", "CLUSTER")
def test_execution_plan(deployment: Deployment) -> None:
    gears = deployment.gears()
    fill(deployment, "n")
    execution = gears.pyexecute(COUNT.format(prefix="n"), unblocking=True).value
    gears.getresultsblocking(execution)
    plans = gears.getexecution(execution)
    assert len(plans) == deployment.shards
    own = gears.getexecution(execution, locality=redgrease.data.ExecLocality.Shard)
    assert len(own) == 1
    assert len(gears.getexecution(execution, locality=redgrease.data.ExecLocality.Cluster)) == deployment.shards
    (plan,) = own.values()
    assert plan.status == redgrease.data.ExecutionStatus.done
    assert plan.steps[0].type == "map"
    assert "collect" in [step.type for step in plan.steps]
    # the shard that started the run counts only the other shards
    assert (plan.shards_received, plan.shards_completed) == (deployment.shards - 1, deployment.shards - 1)
    assert plan.results == 1
    assert plan.total_duration >= 0


@covers("RG.PYEXECUTE", "ID", "DESCRIPTION", "UPGRADE", "REPLACE_WITH")
@covers("RG.PYDUMPSESSIONS", "")
def test_sessions(deployment: Deployment) -> None:
    options = "trigger='{name}', mode='async_local', convertToStr=False"
    script = f"GB('CommandReader').map(lambda r: '{{answer}}').register({options})"
    first, second = (script.format(answer=answer, name="t") for answer in ("one", "two"))
    assert deployment.raw("RG.PYEXECUTE", first, "ID", "s1", "DESCRIPTION", "the first") == "OK"
    assert deployment.raw("RG.TRIGGER", "t") == ["one"]
    with pytest.raises(redis.ResponseError, match="Session s1 already exists"):
        deployment.raw("RG.PYEXECUTE", second, "ID", "s1")
    assert deployment.raw("RG.TRIGGER", "t") == ["one"]
    assert deployment.raw("RG.PYEXECUTE", second, "ID", "s1", "UPGRADE") == "OK"
    assert deployment.raw("RG.TRIGGER", "t") == ["two"]
    assert deployment.raw("RG.PYEXECUTE", first, "ID", "s2", "REPLACE_WITH", "s1") == "OK"
    assert deployment.raw("RG.TRIGGER", "t") == ["one"]
    with pytest.raises(redis.ResponseError, match="Can not replace with s1, session does not exists"):
        deployment.raw("RG.PYEXECUTE", second, "ID", "s3", "REPLACE_WITH", "s1")
    sessions = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in deployment.raw("RG.PYDUMPSESSIONS")]
    assert [session["ID"] for session in sessions if session["registrations"]] == ["s2"]
    for shard in range(deployment.shards):
        eventually(lambda shard=shard: len(deployment.registrations(shard)) == 1)  # type: ignore[misc]


@covers("RG.PYDUMPSESSIONS", "VERBOSE", "DEAD", "SESSIONS")
def test_options_of_the_dump(deployment: Deployment) -> None:
    for name in ("one", "two"):
        script = f"GB('CommandReader').register(trigger='{name}', mode='async_local')"
        deployment.raw("RG.PYEXECUTE", script, "ID", name, "DESCRIPTION", f"number {name}", "REQUIREMENTS", "numpy")
    (flat,) = deployment.raw("RG.PYDUMPSESSIONS", "SESSIONS", "two")
    session = dict(zip(flat[::2], flat[1::2], strict=True))
    assert (session["ID"], session["sessionDescription"], session["linked"]) == ("two", "number two", "primary")
    assert (session["dead"], session["requirementInstallationNeeded"]) in ((0, 0), ("false", "false"))
    assert "numpy" in str(session["requirements"])
    assert len(session["registrations"]) == 1
    verbose = deployment.raw("RG.PYDUMPSESSIONS", "VERBOSE", "SESSIONS", "one", "two")
    assert len(verbose) == 2
    assert isinstance(deployment.raw("RG.PYDUMPSESSIONS", "DEAD"), list)


@covers("RG.PYEXECUTE", "argument errors")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["ID"], "ID is missing"),
        (["WHATEVER"], "Unknown arguments were given: WHATEVER"),
        (["ID", "a b"], "ID must be compose of"),
    ],
)
def test_argument_errors(deployment: Deployment, words: list[str], text: str) -> None:
    with pytest.raises(redis.ResponseError, match=text):
        deployment.raw("RG.PYEXECUTE", "GB().run()", *words)


@covers("RG.PYEXECUTE", "in MULTI: refused")
def test_refused_in_multi(deployment: Deployment) -> None:
    pipeline = deployment.nodes[0].pipeline(transaction=True)
    pipeline.execute_command("RG.PYEXECUTE", "GB().run()")
    with pytest.raises(
        redis.ResponseError, match="Can not run gears inside a multi exec, lua, or when blocking is not allowed"
    ):
        pipeline.execute()


@covers("RG.PYEXECUTE", "REQUIREMENTS that the worker's environment has")
def test_installed_requirements(deployment: Deployment) -> None:
    gears = deployment.gears()
    script = "import numpy\nGB('ShardsIDReader').map(lambda r: numpy.ones(3).sum()).distinct().run()"
    assert gears.pyexecute(script, requirements=["numpy", "redis>=4"]).value == b"3.0"
    assert gears.pyexecute("GB('ShardsIDReader').count().run()", enforce_redgrease=True).errors == []


@pytest.mark.left_out(
    *("RG.PYEXECUTE", "REQUIREMENTS that the worker's environment lacks", "FORCE_REINSTALL_REQUIREMENTS"),
    why=NOTHING_INSTALLED,
    instead=INSTALL,
)
def test_missing_requirements(deployment: Deployment) -> None:
    with pytest.raises(redis.ResponseError, match=r"Could not satisfy requirements.*no-such-package"):
        deployment.raw("RG.PYEXECUTE", "GB().run()", "REQUIREMENTS", "numpy", "no-such-package==1.0")
    with pytest.raises(redis.ResponseError, match="install"):
        deployment.raw("RG.PYEXECUTE", "GB().run()", "FORCE_REINSTALL_REQUIREMENTS", "REQUIREMENTS", "no-such-package")


@covers("RG.CONFIGGET", "", "several keys", "an unknown key")
@covers("RG.CONFIGSET", "", "a user's own key")
def test_settings(deployment: Deployment) -> None:
    config = deployment.gears().config
    before = config.ExecutionMaxIdleTime
    assert before == 5000
    try:
        config.ExecutionMaxIdleTime = 300_000
        assert config.ExecutionMaxIdleTime == 300_000
    finally:
        config.ExecutionMaxIdleTime = before
    assert config.MaxExecutions == 1000
    assert config.MaxExecutionsPerRegistration == 100
    for name in ("MaxExecutions", "MaxExecutionsPerRegistration"):
        value = config.get_single(name)
        assert config.set({name: value + 1})
        assert config.get_single(name) == value + 1
        assert config.set({name: value})
    got = config.get("MaxExecutions", "ExecutionMaxIdleTime")
    assert got == {"MaxExecutions": 1000, "ExecutionMaxIdleTime": 5000}
    assert deployment.raw("RG.CONFIGSET", "MyOwnKey", "value") == ["OK - value was saved in extra config dictionary"]
    script = "GB('ShardsIDReader').map(lambda r: configGet('MyOwnKey')).run(mode='async_local')"
    assert deployment.raw("RG.PYEXECUTE", script)[0] == ["value"]
    (unknown,) = deployment.raw("RG.CONFIGGET", "NoSuchKeyAnywhere")
    assert "(error) Unsupported config parameter: NoSuchKeyAnywhere" in str(unknown)


@covers("RG.CONFIGGET", "the keys that redgrease reads")
def test_settings_of_the_client(deployment: Deployment) -> None:
    gears = deployment.gears()
    assert gears._ping()
    everything = gears.config.get()
    for name in (
        "MaxExecutions",
        "MaxExecutionsPerRegistration",
        "ExecutionMaxIdleTime",
        "ExecutionThreads",
        "SendMsgRetries",
    ):
        assert isinstance(everything[name], int), name
    for name in ("ProfileExecutions", "PythonAttemptTraceback", "CreateVenv", "DownloadDeps"):
        assert getattr(gears.config, name) in (True, False), name
    for name in ("ExecutionThreads", "SendMsgRetries", "PythonInstallReqMaxIdleTime"):
        assert getattr(gears.config, name) > 0, name
    # qa-cluster downloads nothing, but returns values for these settings
    for name in ("PythonInstallationDir", "DependenciesUrl", "DependenciesSha256"):
        assert isinstance(getattr(gears.config, name), (str, bytes)), name


@covers("RG.INFOCLUSTER", "")
@covers("RG.REFRESHCLUSTER", "", better="not needed: the shards know their cluster's topology")
def test_cluster(deployment: Deployment) -> None:
    gears = deployment.gears()
    assert gears.refreshcluster()
    info = gears.infocluster()
    if deployment.shards == 1:
        assert info is None
        assert deployment.raw("RG.INFOCLUSTER") == "no cluster mode"
        return
    assert info.my_id == deployment.raw("CLUSTER MYID")
    assert sorted(int(shard.port) for shard in info.shards) == sorted(deployment.ports)
    slots = sorted((int(shard.minHslot), int(shard.maxHslot)) for shard in info.shards)
    assert slots[0][0] == 0
    assert slots[-1][1] == 16383


@covers("RG.PYSTATS", "")
def test_memory_statistics(deployment: Deployment) -> None:
    stats = deployment.gears().pystats()
    assert stats.PeakAllocated >= stats.CurrAllocated > 0
    assert stats.TotalAllocated >= stats.CurrAllocated


@covers("RG.PYDUMPREQS", "", "redgrease's filters")
def test_known_requirements(deployment: Deployment) -> None:
    gears = deployment.gears()
    assert isinstance(gears.pydumpreqs(), list)
    assert gears.pydumpreqs(name="no-such-package", is_installed=True, is_downloaded=True) == []


@covers("redgrease", "Gears.python_version")
def test_python_version(deployment: Deployment) -> None:
    version: Any = deployment.gears().python_version()
    assert tuple(version)[:2] == sys.version_info[:2]


@pytest.mark.left_out(
    *("redgrease", "Gears.gears_version"),
    why="the client looks for a module named rg, but one module has both families",
    instead="MODULE LIST, where the module is named qa",
)
def test_module_name(deployment: Deployment) -> None:
    assert deployment.gears().gears_version() is None
    names = [entry[1] if isinstance(entry, list) else entry["name"] for entry in deployment.nodes[0].module_list()]
    assert "qa" in names


def left_out(command: str, *words: str, why: str, instead: str) -> Any:
    """A test parameter for an unsupported command, whose error names the replacement."""
    return pytest.param((command, *words), id=command, marks=pytest.mark.left_out(command, why=why, instead=instead))


@pytest.mark.parametrize(
    "words",
    [
        left_out("RG.PYPROFILE", "STATS", "x", why="profiling would slow every function", instead="Python's cProfile"),
        left_out("RG.PYEXPORTREQ", "x", why=NOTHING_INSTALLED, instead=INSTALL),
        left_out("RG.PYIMPORTREQ", "x", why=NOTHING_INSTALLED, instead=INSTALL),
        left_out("RG.HELLO", why="internal to RedisGears", instead="RG.INFOCLUSTER"),
        left_out("RG.CLUSTERSET", why="the server itself knows the topology", instead="CLUSTER MEET, RG.INFOCLUSTER"),
        left_out(
            "RG.PYFREEINTERPRETER",
            why="the interpreter is the worker process",
            instead="kill the worker: the module starts a new one",
        ),
    ],
)
def test_commands_left_out(deployment: Deployment, words: tuple[str, ...]) -> None:
    with pytest.raises(redis.ResponseError) as caught:
        deployment.raw(*words)
    assert f"{words[0]} is left out: " in str(caught.value)


@covers("RG.DUMPPLUGINS", "")
def test_plugins(deployment: Deployment) -> None:
    assert isinstance(deployment.raw("RG.DUMPPLUGINS"), list)


@covers("RG.NETWORKTEST", "")
def test_network(deployment: Deployment) -> None:
    assert deployment.raw("RG.NETWORKTEST") == "OK"


@covers("INFO", "fields, with the prefix qa_", better="more fields for each worker: state, memory, batches, restarts")
def test_info(deployment: Deployment) -> None:
    info = deployment.nodes[0].info("everything")
    for name in ("rg_nexecutions", "rg_nregistrations", "rg_TotalAllocated", "rg_PeakAllocated", "rg_CurrAllocated"):
        assert f"qa_{name}" in info, name
    for name in ("ai_RedisAI_version", "ai_low_level_API_version", "ai_rdb_version", "worker_state", "worker_pid"):
        assert f"qa_{name}" in info, name
