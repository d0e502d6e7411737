"""Installs a chart with Helm's own code into a fake Kubernetes API, and prints the recorded requests.

    python tests/deploy/helm.py deploy/chart '{"auth": {"password": ".."}}' 1.32

It prints one JSON object. `objects` has the objects that Helm sent. `problems` has their deviations from the schemas of
that version of Kubernetes. If Helm did not render the chart, the object has only `refused`, the reason. Helm is the
shared library of `helm-sdkpy`, which checks the values, renders the chart and sends the objects as to a real cluster.
This program runs in an environment with only tests/deploy/requirements.txt.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import kubernetes_validate

NAMESPACE = "questions"
KINDS: Mapping[str, Mapping[str, str]] = {
    "v1": {"Secret": "secrets", "Service": "services", "ConfigMap": "configmaps"},
    "apps/v1": {"StatefulSet": "statefulsets", "Deployment": "deployments"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
}
RELEASE_RECORD = b"sh.helm.release.v1."


class Notes(BaseHTTPRequestHandler):
    """The part of a Kubernetes API that Helm needs. It has the kinds above and no objects."""

    arrived: list[dict[str, Any]]
    minor: str

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        group = path.removeprefix("/apis/").removeprefix("/api/")
        if path == "/version":
            self._send({"major": "1", "minor": self.minor, "gitVersion": f"v1.{self.minor}.0"})
        elif path == "/api":
            self._send({"kind": "APIVersions", "versions": ["v1"]})
        elif path == "/apis":
            self._send({"kind": "APIGroupList", "apiVersion": "v1", "groups": list(map(_group, list(KINDS)[1:]))})
        elif group in KINDS:
            self._send(
                {
                    "kind": "APIResourceList",
                    "groupVersion": group,
                    "resources": [_resource(*kind) for kind in KINDS[group].items()],
                }
            )
        elif path.endswith("/secrets"):
            self._send({"kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": []})
        else:
            self._send(
                {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}, 404
            )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if RELEASE_RECORD in body:  # Helm's record of the release, which has another encoding
            self._send({}, 201)
            return
        self.arrived.append(json.loads(body))
        self._send(self.arrived[-1], 201)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send({})

    def _send(self, answer: object, status: int = 200) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": name, "version": name.partition("/")[2]}
    return {"name": name.partition("/")[0], "versions": [version], "preferredVersion": version}


def _resource(kind: str, name: str) -> dict[str, Any]:
    return {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["create", "get", "list"]}


def install(chart: str, values: str, minor: str) -> tuple[list[dict[str, Any]], str]:
    """The objects that Helm sends, and the reason why it refuses the chart, or an empty text."""
    Notes.arrived, Notes.minor = [], minor
    spec = importlib.util.find_spec("helm_sdkpy")
    assert spec is not None and spec.origin is not None
    (library,) = (Path(spec.origin).parent / "_lib").glob("linux-*/*.so")
    helm = ctypes.CDLL(str(library))
    helm.helm_sdkpy_last_error.restype = ctypes.c_char_p
    server = ThreadingHTTPServer(("127.0.0.1", 0), Notes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(_access(f"http://127.0.0.1:{server.server_port}"), file)
        file.flush()
        handle, result = ctypes.c_uint64(), ctypes.c_char_p()
        if helm.helm_sdkpy_config_create(NAMESPACE.encode(), file.name.encode(), None, b"", ctypes.byref(handle)):
            raise SystemExit(helm.helm_sdkpy_last_error().decode())
        options = json.dumps({"wait": False, "timeout_seconds": 60, "disable_openapi_validation": True})
        words = ("answers", chart, values, "", options)
        failed = helm.helm_sdkpy_install(handle, *(word.encode() for word in words), ctypes.byref(result))
    server.shutdown()
    return Notes.arrived, helm.helm_sdkpy_last_error().decode() if failed else ""


def _access(url: str) -> dict[str, Any]:
    """The contents of a kubeconfig file. JSON is valid YAML."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "notes", "cluster": {"server": url}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "notes", "context": {"cluster": "notes", "user": "nobody"}}],
        "current-context": "notes",
    }


def problems(objects: Sequence[dict[str, Any]], minor: str) -> list[str]:
    """The deviations of objects from the schemas of Kubernetes, including unknown fields."""
    found = []
    for made in objects:
        try:
            kubernetes_validate.validate(made, f"1.{minor}", strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{made['kind']} {made['metadata']['name']}: {list(error.path)}: {error.message}")
    return found


def main(chart: str, values: str, version: str) -> None:
    """Install the chart, check the objects, and print the result."""
    minor = version.partition(".")[2]
    objects, refused = install(chart, values, minor)
    print(json.dumps({"objects": objects, "problems": problems(objects, minor), "refused": refused}))


if __name__ == "__main__":
    main(*sys.argv[1:])
