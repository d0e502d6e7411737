"""Helm renders the chart, the result fits the schemas of Kubernetes, and invalid values are refused."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import redis

from qa_cluster.config import SETTINGS
from tests.contract.test_documents import missing
from tests.harness.certificates import Authority, tls_or_skip
from tests.harness.programs import ROOT, binary_or_skip

from .running import PASSWORD, Deployed

CHART = ROOT / "deploy" / "chart"
VALUES: dict[str, Any] = {"auth": {"password": "0123456789abcdef"}}
EVERYTHING: dict[str, Any] = VALUES | {
    "shards": {
        "count": 4,
        "replicas": 1,
        "storage": {"className": "fast"},
        "nodeSelector": {"disk": "ssd"},
        "tls": {"existingSecret": "servers"},
    },
    "autoscaling": {"enabled": True, "queueTime": {"enabled": True}},
    "networkPolicy": {"serviceFrom": [{"namespaceSelector": {}}], "metricsFrom": []},
    "service": {
        "withoutKeys": True,
        "apiKeys": {"existingSecret": "api-keys"},
        "tls": {"existingSecret": "certificate"},
        "settings": {"QA_TOP_K_MAX": "10"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
    },
    "image": {"pullSecrets": ["registry"]},
}

# All values, with the optional processes.
OPTIONS: dict[str, Any] = EVERYTHING | {
    "jobs": {"enabled": True, "replicas": 2, "workers": 3},
    "mcp": {"enabled": True, "write": True, "hosts": ["mcp.example"]},
}

Install = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def install(tool: Callable[[str], str]) -> Install:
    """A function that installs a chart with `helm.py` and returns its `objects`, `problems` and `refused`.

    It installs the same chart with the same values only once.
    """

    @cache
    def answer(values: str, version: str, chart: Path) -> str:
        command = [tool("python"), str(ROOT / "tests/deploy/helm.py"), str(chart), values, version]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(values: object, version: str = "1.34", chart: Path = CHART) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(answer(json.dumps(values), version, chart))
        return found

    return run


def named(answer: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {made["metadata"]["name"]: made for made in answer["objects"] if made["kind"] == kind}


def containers(answer: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Every container, with the spec of its pod."""
    pods = [made["spec"]["template"]["spec"] for made in answer["objects"] if "template" in made.get("spec", {})]
    return [(one, pod) for pod in pods for one in [*pod.get("initContainers", ()), *pod["containers"]]]


@pytest.mark.parametrize("version", ["1.27", "1.34", "1.37"])
@pytest.mark.parametrize("values", [VALUES, EVERYTHING, OPTIONS], ids=["few values", "all values", "all processes"])
def test_the_rendered_objects_fit_the_schemas_of_kubernetes(
    install: Install, values: dict[str, Any], version: str
) -> None:
    answer = install(values, version)
    assert (answer["problems"], answer["refused"]) == ([], "")
    shards, replicas = values.get("shards", {}).get("count", 3), values.get("shards", {}).get("replicas", 0)
    sets = named(answer, "StatefulSet")
    assert [one["spec"]["replicas"] for one in sets.values()] == [1 + replicas] * shards
    assert len(named(answer, "PodDisruptionBudget")) == 2
    assert len(named(answer, "HorizontalPodAutoscaler")) == ("autoscaling" in values)


def test_every_container_is_confined(install: Install) -> None:
    found = containers(install(OPTIONS))
    assert len(found) == 4 + 3 + 2
    for container, pod in found:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]
        assert pod["automountServiceAccountToken"] is False
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert writable == {"/data", "/tmp"}


def test_commands_and_settings_of_the_containers_exist(install: Install) -> None:
    for container, _ in containers(install(OPTIONS)):
        assert missing(shlex.join(["qa-cluster", *container["args"]])) == ""
        names = {row["name"] for row in container["env"]} - {"POD_IP"}
        assert {name.removeprefix("QA_").lower() for name in names} <= set(SETTINGS)


def test_the_service_starts_without_keys_only_if_the_values_allow_it(install: Install) -> None:
    for values, without in ((VALUES, False), (EVERYTHING, True)):
        (service,) = named(install(values), "Deployment").values()
        (container,) = service["spec"]["template"]["spec"]["containers"]
        assert ("--without-keys" in container["args"]) is without


def test_workers_for_batches_and_the_mcp_server_are_optional(install: Install) -> None:
    assert len(named(install(EVERYTHING), "Deployment")) == 1
    answer = install(OPTIONS)
    made = {name.rpartition("-")[2]: one for name, one in named(answer, "Deployment").items()}
    jobs, mcp = made["jobs"], made["mcp"]
    (worker,) = jobs["spec"]["template"]["spec"]["containers"]
    assert (jobs["spec"]["replicas"], worker["args"]) == (2, ["jobs", "work", "--workers", "3"])
    settings = {row["name"]: row.get("value") for row in worker["env"]}
    assert settings["QA_CLUSTER_URL"].startswith("rediss://") and settings["QA_TOP_K_MAX"] == "10"
    (server,) = mcp["spec"]["template"]["spec"]["containers"]
    asked = {row["name"]: row.get("value") for row in server["env"]}
    (service,) = [name for name, one in named(answer, "Service").items() if name + "-mcp" in named(answer, "Service")]
    assert asked["QA_SERVICE_URL"] == f"https://{service}:80"
    assert f"{service}-mcp" in asked["QA_MCP_HOSTS"].split(",") and asked["QA_MCP_HOSTS"].endswith(",mcp.example")
    # the MCP server gets no password of the cluster, and only the authority's certificate
    assert not any("CLUSTER" in name for name in asked)
    (volume,) = [one for one in mcp["spec"]["template"]["spec"]["volumes"] if "secret" in one]
    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    assert {"--write", "--without-keys"} <= set(server["args"])
    policies = named(answer, "NetworkPolicy")
    admitted = policies[f"{service}-shards"]["spec"]["ingress"][1]["from"][0]["podSelector"]["matchExpressions"]
    assert admitted == [{"key": "app.kubernetes.io/component", "operator": "In", "values": ["service", "jobs"]}]
    sources = policies[service]["spec"]["ingress"][0]["from"]
    assert (
        next(one for one in sources if "podSelector" in one)["podSelector"]["matchLabels"][
            "app.kubernetes.io/component"
        ]
        == "mcp"
    )
    assert policies[f"{service}-mcp"]["spec"]["podSelector"]["matchLabels"] == mcp["spec"]["selector"]["matchLabels"]


def test_the_service_uses_the_certificate_of_the_secret_and_its_probes_use_https(install: Install) -> None:
    for values, scheme in ((VALUES, "HTTP"), (EVERYTHING, "HTTPS")):
        (service,) = named(install(values), "Deployment").values()
        pod = service["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        settings = {row["name"]: row.get("value") for row in container["env"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        secrets = secrets_of(pod)
        assert [container[f"{kind}Probe"]["httpGet"]["scheme"] for kind in ("liveness", "readiness")] == [scheme] * 2
        with_tls = scheme == "HTTPS"
        assert secrets.get("tls") == ("certificate" if with_tls else None)
        assert settings.get("QA_HTTP_TLS_CERT") == ("/tls/tls.crt" if with_tls else None)
        assert settings.get("QA_HTTP_TLS_KEY") == ("/tls/tls.key" if with_tls else None)
        assert mounts.get("tls") == ("/tls" if with_tls else None)


def secrets_of(pod: dict[str, Any]) -> dict[str, str]:
    """The secrets in a pod's volumes, by volume name; check that only the pod's user can read them."""
    found = {volume["name"]: volume["secret"] for volume in pod["volumes"] if "secret" in volume}
    assert all(secret["defaultMode"] == 0o440 for secret in found.values())
    return {name: secret["secretName"] for name, secret in found.items()}


@pytest.mark.parametrize(
    ("values", "with_tls"),
    [
        pytest.param(VALUES, False, id="without"),
        pytest.param(EVERYTHING, True, id="everywhere"),
        pytest.param(VALUES | {"shards": {"tls": {"existingSecret": "servers"}}}, True, id="servers only"),
    ],
)
def test_servers_and_their_clients_use_the_certificate_of_the_secret(
    install: Install, values: dict[str, Any], with_tls: bool
) -> None:
    files = {name: f"/cluster-tls/{file}" for name, file in (("CA", "ca.crt"), ("CERT", "tls.crt"), ("KEY", "tls.key"))}
    as_client = {f"QA_CLUSTER_TLS_{name}": file for name, file in files.items()} | {
        "QA_CLUSTER_TLS_CHECK_HOST": "false"
    }
    as_server = {"QA_SERVER": "redis-server"} | {f"QA_SERVER_TLS_{name}": files[name] for name in ("CERT", "KEY")}
    for container, pod in containers(install(values)):
        settings = {row["name"]: row.get("value") for row in container["env"]}
        expected = as_client | (as_server if container["name"] == "server" else {}) if with_tls else {}
        assert {
            name: settings[name] for name in settings if "TLS" in name or name == "QA_SERVER"
        }.items() >= expected.items()
        assert with_tls or not any("CLUSTER_TLS" in name or "SERVER" in name for name in settings)
        assert settings["QA_CLUSTER_URL"].partition("://")[0] == ("rediss" if with_tls else "redis")
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"] if mount.get("readOnly")}
        secrets = secrets_of(pod)
        assert secrets.get(mounts.get("/cluster-tls", "")) == ("servers" if with_tls else None)


def test_api_keys_of_the_secret_are_imported_before_the_service_starts(install: Install) -> None:
    for values, names in ((VALUES, ["setup"]), (EVERYTHING, ["setup", "keys"])):
        (service,) = named(install(values), "Deployment").values()
        pod = service["spec"]["template"]["spec"]
        assert [one["name"] for one in pod["initContainers"]] == names
        seen = {
            one["name"]: [mount["mountPath"] for mount in one["volumeMounts"] if mount["name"] == "keys"]
            for one in [*pod["initContainers"], *pod["containers"]]
        }
        assert [name for name, mounts in seen.items() if mounts] == names[1:]
        assert secrets_of(pod).get("keys") == ("api-keys" if names[1:] else None)
    (mount,) = seen["keys"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "keys"]
    (item,) = volume["secret"]["items"]
    assert pod["initContainers"][1]["args"] == ["keys", "import", f"{mount}/{item['path']}"]


def test_the_setup_names_exactly_the_existing_servers(install: Install) -> None:
    answer = install(EVERYTHING)
    (service,) = named(answer, "Deployment").values()
    container = service["spec"]["template"]["spec"]["initContainers"][0]
    settings = {row["name"]: row.get("value") for row in container["env"]}
    hosts = settings["QA_CLUSTER_URL"].removeprefix("rediss://").split(",")
    pods = [f"{name}-{number}" for number in (0, 1) for name in sorted(named(answer, "StatefulSet"))]
    (headless,) = [name for name, one in named(answer, "Service").items() if one["spec"].get("clusterIP") == "None"]
    assert hosts == [f"{pod}.{headless}:7000" for pod in pods]
    assert {one["spec"]["serviceName"] for one in named(answer, "StatefulSet").values()} == {headless}
    assert (settings["QA_SHARDS"], settings["QA_REPLICAS"]) == ("4", "1")


def test_the_password_comes_from_a_secret(install: Install) -> None:
    own = install(VALUES)
    given = install({"auth": {"existingSecret": "mine"}})
    assert next(iter(named(own, "Secret").values()))["stringData"] == VALUES["auth"]
    assert not named(given, "Secret")
    for answer, name in ((own, next(iter(named(own, "Secret")))), (given, "mine")):
        for container, _ in containers(answer):
            (row,) = [row for row in container["env"] if row["name"] == "QA_CLUSTER_PASSWORD"]
            assert row["valueFrom"]["secretKeyRef"] == {"name": name, "key": "password"}


def test_the_password_of_replication_reaches_servers_and_setup_only(install: Install) -> None:
    secret = {"password": "0123456789abcdef", "replicationPassword": "fedcba9876543210"}
    own = install(VALUES | {"auth": secret})
    (name, made), *_ = named(own, "Secret").items()
    assert made["stringData"]["replication-password"] == secret["replicationPassword"]
    for container, _ in containers(own):
        rows = [row for row in container["env"] if row["name"] == "QA_REPLICATION_PASSWORD"]
        assert bool(rows) == (container["name"] in ("server", "setup")), container["name"]
        for row in rows:
            reference = {"name": name, "key": "replication-password", "optional": True}
            assert row["valueFrom"]["secretKeyRef"] == reference


def test_selectors_match_the_intended_pods(install: Install) -> None:
    answer = install(EVERYTHING)
    pods = {
        made["metadata"]["name"]: made["spec"]["template"]["metadata"]["labels"]
        for made in answer["objects"]
        if "template" in made.get("spec", {})
    }
    wanted = {
        made["metadata"]["name"] + made["kind"]: made["spec"].get("selector") or made["spec"].get("podSelector")
        for made in answer["objects"]
        if made["kind"] in ("Service", "PodDisruptionBudget", "NetworkPolicy")
    }
    assert len(wanted) == 6
    for name, selector in wanted.items():
        labels = selector.get("matchLabels", selector)
        found = {pod for pod, has in pods.items() if labels.items() <= has.items()}
        assert found == {pod for pod in pods if ("-shard-" in pod) == ("-shards" in name)}, name


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "/auth"),
        ({"auth": {"password": "short"}}, "/auth/password"),
        ({"auth": VALUES["auth"] | {"replicationPassword": "short"}}, "/auth/replicationPassword"),
        (VALUES | {"shards": {"count": 0}}, "/shards/count"),
        (VALUES | {"shard": {"count": 3}}, "additional properties 'shard'"),
        (VALUES | {"service": {"settings": {"QA_CLUSTER_URL": "redis://x"}}}, "invalid propertyName 'QA_CLUSTER_URL'"),
        (VALUES | {"service": {"settings": {"QA_CLUSTER_TLS_CHECK_HOST": "true"}}}, "QA_CLUSTER_TLS_CHECK_HOST'"),
        (VALUES | {"shards": {"tls": {"existingSecret": "a", "server": ""}}}, "/shards/tls/server"),
    ],
)
def test_invalid_values_are_refused(install: Install, values: dict[str, Any], reason: str) -> None:
    answer = install(values)
    assert reason in answer["refused"]
    assert answer["objects"] == []


@pytest.mark.parametrize(
    ("right", "wrong", "problem"),
    [
        ("terminationGracePeriodSeconds: 60", "terminationGracePeriod: 60", "terminationGracePeriod"),
        ("podManagementPolicy: Parallel", "podManagementPolicy: [Parallel]", "podManagementPolicy"),
    ],
)
def test_a_planted_fault_is_found(install: Install, tmp_path: Path, right: str, wrong: str, problem: str) -> None:
    chart = Path(shutil.copytree(CHART, tmp_path / "chart"))
    file = chart / "templates" / "shards.yaml"
    assert right in file.read_text()
    file.write_text(file.read_text().replace(right, wrong))
    answer = install(VALUES, chart=chart)
    assert any(problem in text for text in answer["problems"]) or problem in answer["refused"]


class AsRendered(Deployed):
    """Runs the commands and settings of the chart's containers, with addresses and folders of this machine."""

    def __init__(self, folder: Path, found: dict[str, dict[str, Any]], mounts: dict[str, Path]) -> None:
        super().__init__(folder)
        self.found, self.mounts = found, mounts

    def own(self, text: str) -> str:
        for mount, place in self.mounts.items():
            text = text.replace(f"{mount}/", f"{place}/")
        return text

    def environment(self, name: str) -> dict[str, str]:
        base = super().environment(name)
        rows = self.found[name.partition("-")[0]]["env"]
        given = {row["name"]: self.own(row["value"]) for row in rows if "value" in row}
        scheme = given.pop("QA_CLUSTER_URL").partition("://")[0]
        return base | given | {"QA_CLUSTER_URL": base["QA_CLUSTER_URL"].replace("redis", scheme)}

    def set_up(self) -> None:
        super().set_up()
        done = self.start("keys", *map(self.own, self.found["keys"]["args"])).wait(60)
        assert done == 0, (self.folder / "keys.log").read_text()


@pytest.mark.timeout(600)
def test_servers_with_tls_and_a_service_with_keys_answer_as_rendered(install: Install, tmp_path: Path) -> None:
    """The containers' commands run as processes, with a certificate for another name and a file with API keys."""
    tls_or_skip(binary_or_skip("redis"))
    values = VALUES | {
        "shards": {"count": 2, "maxmemoryMb": 0, "tls": {"existingSecret": "servers"}},
        "service": {"apiKeys": {"existingSecret": "api-keys"}},
    }
    found = {container["name"]: container for container, _ in containers(install(values))}
    secret, texts = tmp_path / "secret", [f"qac_00000000000{number}_{'s' * 43}" for number in (1, 2)]
    secret.mkdir()
    authority = Authority(tmp_path)
    made = authority.sign("pod", ["DNS:pod.example"])
    for name, file in (("ca.crt", authority.cert), ("tls.crt", made.cert), ("tls.key", made.key)):
        shutil.copy(file, secret / name)
    (secret / "keys.json").write_text(
        "\n".join(json.dumps({"key": text, "name": "shop", "scopes": ["ask", "write"]}) for text in texts)
    )
    with AsRendered(tmp_path, found, {"/cluster-tls": secret, "/keys": secret}) as running, running.client() as client:
        document, admitted = "/documents/ada", {"authorization": f"Bearer {texts[0]}"}
        assert client.put(document, json={"text": "Ada wrote the first program."}).status_code == 401
        assert client.put(document, json={"text": "Ada wrote the first program."}, headers=admitted).is_success
        reply = client.get("/qa", params={"question": "Who wrote the first program?"}, headers=admitted)
        assert reply.json()["answers"][0]["answer"].startswith("Ada")
        with pytest.raises(redis.ConnectionError):
            redis.Redis(port=running.ports[0], password=PASSWORD).ping()
        assert running.start("setup", "keys", "revoke", "000000000001").wait(60) == 0
        assert running.start("keys", *map(running.own, found["keys"]["args"])).wait(60) == 0
        assert client.get("/qa", params={"question": "Who?"}, headers=admitted).status_code == 401
        second = {"authorization": f"Bearer {texts[1]}"}
        assert client.get("/qa", params={"question": "Who?"}, headers=second).is_success
