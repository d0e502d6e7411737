"""The positions of passwords among arguments, and the environment without passwords."""

from __future__ import annotations

import pytest

from qa_cluster.security.passwords import typed_passwords, without_passwords

pytestmark = pytest.mark.hostile


@pytest.mark.parametrize(
    ("words", "hidden"),
    [
        (["up", "--cluster-url", "redis://me:hunter2@db:7000,db:7001"], ["hunter2"]),
        (["--cluster-url=rediss://:hunter2@db:7000", "status"], ["hunter2"]),
        (["--cluster-url", "redis://me:p@ss/word:2@db:7000"], ["p@ss/word:2"]),
        (["--set", "cluster_password=hunter2", "--set", "jobs_url=redis://:other@h"], ["hunter2", "other"]),
        (["--set=cluster-password=a b=c"], ["a b=c"]),
        (["--set", "cluster_password =two\nlines"], ["two\nlines"]),
        (["--set", " cluster_password=Zürich"], ["Zürich"]),
        (["--cluster-url", "redis://db:7000,db:7001", "ask", "Who is a@b?"], []),
        (["--cluster-url", "redis://me@db:7000", "--set", "cluster_password="], []),
        ([], []),
    ],
)
def test_typed_passwords_are_found(words: list[str], hidden: list[str]) -> None:
    arguments = b"".join(word.encode() + b"\0" for word in words)
    assert [arguments[start : start + size].decode() for start, size in typed_passwords(arguments)] == hidden


def test_children_without_need_get_no_password() -> None:
    given = {"QA_CLUSTER_PASSWORD": "a", "QA_CLUSTER_URL": "redis://:b@h", "QA_JOBS_URL": "redis://:c@h", "PATH": "/"}
    assert without_passwords(given) == {"PATH": "/"}
