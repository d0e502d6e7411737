#!/usr/bin/env python3
"""Checks whether the server or the service in this container is alive. The exit status is 0, or 1 with the reason.

    qa-health          is the server in QA_DATA_DIR alive? If QA_DATA_DIR has no server: is the service alive?
    qa-health ready    is this server or service also ready to answer?

A server is alive if it answers PING, even with LOADING, MASTERDOWN or BUSY. A server is ready if it answers PONG. So a
server that loads its data is alive, but not ready. The check does not test the worker, because the module supervises
the worker. A service is alive if /livez succeeds. A service is ready if /readyz succeeds.
"""

import os
import socket
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

SECONDS = 4.0


def server_problem(path: Path, password: str, ready: bool) -> str:
    """Return the problem of the server that listens on the unix socket `path`; empty if the server has no problem."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(SECONDS)
        link.connect(str(path))
        replies = link.makefile("rb")
        secret = password.encode()
        if secret:
            link.sendall(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n" % (len(secret), secret))
            if not (reply := replies.readline()).startswith(b"+"):
                return f"AUTH: {reply.decode(errors='replace').strip()}"
        link.sendall(b"*1\r\n$4\r\nPING\r\n")
        reply = replies.readline()
    lives = (b"+PONG",) if ready else (b"+PONG", b"-LOADING", b"-MASTERDOWN", b"-BUSY")
    return "" if reply.startswith(lives) else f"PING: {reply.decode(errors='replace').strip() or 'no reply'}"


def service_problem(port: str, ready: bool) -> str:
    """Return the problem of the service on this port; empty if the service has no problem."""
    scheme = "https" if os.environ.get("QA_HTTP_TLS_CERT") else "http"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The service is on loopback, and its certificate is valid for other names.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = f"{scheme}://127.0.0.1:{port}/{'readyz' if ready else 'livez'}"
    try:
        with urllib.request.urlopen(url, timeout=SECONDS, context=context):
            return ""
    except urllib.error.HTTPError as error:
        return f"status {error.code}"


def main() -> int:
    """Check the server or the service, print the problem, and return the exit status."""
    ready = sys.argv[1:] == ["ready"]
    path = Path(os.environ.get("QA_DATA_DIR", "/data")) / "node" / "server.sock"
    try:
        if path.exists():
            problem = server_problem(path, os.environ.get("QA_CLUSTER_PASSWORD", ""), ready)
        else:
            problem = service_problem(os.environ.get("QA_HTTP_PORT", "8080"), ready)
    except OSError as error:
        problem = str(error)
    if problem:
        print(problem)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
