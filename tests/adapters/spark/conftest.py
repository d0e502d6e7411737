"""A local Spark session for all tests. It retries a failed task twice."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.system import System


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from qa_cluster.integrations.spark import QAClusterDataSource

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # For small jobs, an optimizing compilation would take longer than the run.
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder))
        .config("spark.local.dir", str(folder))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(QAClusterDataSource)
    yield session
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the Java process ends when its input closes
    gateway.proc.wait(60)


@pytest.fixture
def url(framework_service: System) -> str:
    return f"http://127.0.0.1:{framework_service.port}"


@pytest.fixture
def collection(url: str) -> Iterator[str]:
    """An empty collection, which is deleted after the test."""
    from qa_cluster.client import Client

    name = f"spark-{os.urandom(4).hex()}"
    with Client(url, timeout=120) as client:
        client.create_collection(name)
        yield name
        client.delete_collection(name)


@pytest.fixture
def marker(tmp_path: Path) -> str:
    """The path of a file that the first attempt of a task creates."""
    return str(tmp_path / "first-attempt")
