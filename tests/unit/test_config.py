"""Settings: their sources, the order of the sources, and the errors of wrong values."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa_cluster.config import SETTINGS, Settings, expected, load
from qa_cluster.errors import ConfigError
from tests.harness.strangers import give_away


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults_are_the_table() -> None:
    loaded = load(environment={})
    assert loaded.settings == Settings()
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.settings.waves == (3, 8)


def test_every_source_wins_over_the_one_before(in_empty_folder: Path) -> None:
    file = in_empty_folder / "qa-cluster.toml"
    file.write_text("shards = 4\nreplicas = 1\nhttp_port = 9001\n")
    loaded = load(environment={"QA_REPLICAS": "2", "QA_HTTP_PORT": "9002"}, flags={"http_port": "9003"})
    assert (loaded.settings.shards, loaded.settings.replicas, loaded.settings.http_port) == (4, 2, 9003)
    assert loaded.sources["shards"] == "file qa-cluster.toml"
    assert loaded.sources["replicas"] == "environment"
    assert loaded.sources["http_port"] == "flag"
    assert loaded.sources["server"] == "default"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("QA_STAGE", "test"),
        ("QA_ZZZZZZ", "3"),
        ("QA_TEAM_NAME", "reviewers"),
        ("QA_CLUSTER_PORT", "tcp://10.1.2.3:80"),
        ("QA_CLUSTER_SERVICE_PORT_HTTP", "80"),
        ("QA_SERVICE_PORT_8080_TCP_ADDR", "10.1.2.3"),
        ("QA_HTTP_PORT", "tcp://10.1.2.3:80"),
    ],
)
def test_variables_of_other_programs_are_ignored_and_named(name: str, value: str) -> None:
    loaded = load(environment={name: value, "QA_SHARDS": "4"})
    assert loaded.settings == Settings(shards=4)
    assert loaded.foreign == (name,)


def test_an_unknown_setting_in_a_file_is_an_error(in_empty_folder: Path) -> None:
    (in_empty_folder / "qa-cluster.toml").write_text("stage = 3\n")
    with pytest.raises(ConfigError, match="unknown setting 'stage'"):
        load(environment={})


def test_tables_and_lists_of_toml(in_empty_folder: Path) -> None:
    file = in_empty_folder / "mine.toml"
    file.write_text('waves = [2, 4]\n[http]\nhost = "::1"\n')
    settings = load(environment={"QA_CONFIG": str(file)}).settings
    assert settings.waves == (2, 4)
    assert settings.http_host == "::1"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"QA_SHARDS": "many"}, ["'shards'", "'many'", "QA_SHARDS", "an integer from 1 to 100"]),
        ({"QA_SHARDS": "0"}, ["'shards'", "'0'", "from 1"]),
        ({"QA_SHARDS": "3.5"}, ["'shards'", "'3.5'"]),
        ({"QA_SHARD": "3"}, ["unknown setting 'shard'", "did you mean 'shards'"]),
        ({"QA_HTTP_PROT": "3"}, ["unknown setting 'http_prot'", "did you mean 'http_port'"]),
        ({"QA_WAVES": "3,1"}, ["'waves'", "ascending"]),
        ({"QA_WAVES": ""}, ["'waves'"]),
        ({"QA_WAVES": "1,x"}, ["'waves'", "'1,x'"]),
        ({"QA_LOG_LEVEL": "loud"}, ["'log_level'", "debug, info, warning, error"]),
        ({"QA_HTTP_PORT": "70000"}, ["'http_port'", "65535"]),
        ({"QA_DATA_DIR": ""}, ["'data_dir'", "a path"]),
        ({"QA_CONFIG": "missing.toml"}, ["'missing.toml'", "No such file"]),
    ],
)
def test_wrong_values_are_named(environment: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environment=environment)
    for word in words:
        assert word in str(caught.value)


def test_wrong_files_are_named(in_empty_folder: Path) -> None:
    file = in_empty_folder / "qa-cluster.toml"
    file.write_text("shards = \n")
    with pytest.raises(ConfigError, match=r"'qa-cluster.toml' is not TOML"):
        load(environment={})
    file.write_text("shards = true\n")
    with pytest.raises(ConfigError, match="'shards' is True"):
        load(environment={})
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(environment={})


@pytest.mark.hostile
def test_a_file_of_another_user_is_read_only_if_it_is_named(
    in_empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = in_empty_folder / "qa-cluster.toml"
    file.write_text("shards = 4\n")
    give_away(file, monkeypatch)
    with pytest.raises(ConfigError, match=f"'{file}' belongs to user .*--config qa-cluster.toml"):
        load(environment={})
    assert load("qa-cluster.toml", environment={}).settings.shards == 4
    assert load(environment={"QA_CONFIG": "qa-cluster.toml"}).settings.shards == 4
    assert load("/dev/null", environment={}).settings == Settings()


@pytest.mark.hostile
def test_a_child_process_reads_no_file(in_empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = in_empty_folder / "qa-cluster.toml"
    file.write_text("shards = 4\n")
    give_away(file, monkeypatch)
    chosen = load("/dev/null", environment={}, flags={"replicas": "1"})
    assert load(environment=chosen.environment()).settings == chosen.settings


@pytest.mark.hostile
@pytest.mark.parametrize("password", ["hunter2", "p@ss/word"])
def test_secrets_are_masked(password: str) -> None:
    loaded = load(environment={"QA_CLUSTER_PASSWORD": password, "QA_CLUSTER_URL": f"redis://me:{password}@db:7000"})
    assert password not in loaded.shown("cluster_password")
    assert loaded.shown("cluster_url") == "redis://me:********@db:7000"
    assert load(environment={}).shown("cluster_password") == ""


def test_a_wrong_secret_is_not_shown(in_empty_folder: Path) -> None:
    (in_empty_folder / "qa-cluster.toml").write_text("cluster_password = 12345678\n")
    with pytest.raises(ConfigError, match="'cluster_password' is a secret value") as caught:
        load(environment={})
    assert "12345678" not in str(caught.value)


def test_a_child_process_sees_the_same_settings() -> None:
    loaded = load(environment={"QA_SHARDS": "5"}, flags={"waves": "2,5", "data_dir": "/x y"})
    assert load(environment=loaded.environment()).settings == loaded.settings


def test_every_setting_says_what_it_is() -> None:
    for row in SETTINGS.values():
        assert row.help, row.name
        assert expected(row)
        assert row.name.endswith(f"_{row.unit.lower()}") or row.unit in ("", "characters", "bytes"), row.name
