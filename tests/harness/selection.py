"""Which tests run: `make test` takes a selection (`pytest --quick`), `make test-all` and CI take all of them.

Each rule has a table:

- The quick selection leaves out `LONG`: tests that take long and are rarely the only ones that detect a fault.
- A test that exists for each server program runs on further servers only if servers differ in what it exercises: the
  module API, persistence, rights, replication, the cluster bus, versions. These are the files of `QUICK_ON_ALL` and,
  without `--quick`, those of `ON_ALL`.
- `make test-servers` (`pytest --all-servers`) runs all other tests on further servers too, without the tests of
  `SAME_ON_ALL` and those with the mark `one_server`.
- `MODEL_SUITE` runs where torch is installed: `make test-model`, which CI runs too.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

# The worker, the service or the command line computes what these tests check; the server only transports it.
SAME_ON_ALL = (
    "tests/cluster/test_documents_command.py",
    "tests/cluster/test_eval.py",
    "tests/cluster/test_model_faults.py",
    "tests/cluster/test_models.py",
    "tests/cluster/test_traces.py",
    "tests/functions/test_answer_keys.py",
    "tests/functions/test_answers.py",
    "tests/functions/test_call_times.py",
    "tests/functions/test_collections.py",
    "tests/functions/test_filters.py",
    "tests/functions/test_ingest.py",
    "tests/functions/test_long_documents.py",
    "tests/functions/test_ranking.py",
    "tests/functions/test_search.py",
    "tests/functions/test_shared_shard.py",
    "tests/fuzz/",
    "tests/gears/test_cluster_runs.py",
    "tests/gears/test_functions_as_in_redisgears.py",
    "tests/gears/test_functions_on_all_shards.py",
    "tests/gears/test_inference_server.py",
    "tests/gears/test_models_as_in_redisai.py",
    "tests/gears/test_parts_without_origin.py",
    "tests/gears/test_scripts.py",
    "tests/gears/test_time_limits.py",
)

# Whole sets of questions, and many latencies.
MODEL_SUITE = (
    "tests/model/test_default_reader.py",
    "tests/model/test_evaluate.py",
    "tests/model/test_mining.py::test_the_written_passages_give",
    "tests/model/test_report.py::test_latency_is_measured",
)

# Files, and tests by the start of their names.
LONG = (
    # all documents but the README
    *(f"tests/docs/test_blocks.py::test_blocks_run[{first}" for first in "abcdefghijklmnopqrstuvwxyz"),
    # slices of the long suites
    "tests/benchmarks/",
    "tests/fuzz/",
    "tests/openapi/",
    "tests/soak/",
    # hostile input and clients: `make hostile`
    "tests/api/test_bounded_answers.py",
    "tests/api/test_masses.py",
    "tests/cluster/test_fake_primary.py",
    "tests/contract/test_patterns.py",
    "tests/functions/test_failed_documents.py",
    "tests/functions/test_hostile_models.py",
    "tests/unit/sources/test_hostile.py",
    # clusters that fail over, lose shards, move slots or change readers under load
    "tests/cluster/test_models.py::test_a_change_that_one_shard_misses",
    "tests/cluster/test_models.py::test_a_reader_too_large_for_memory",
    "tests/cluster/test_resharding.py",
    "tests/functions/test_moved_listing.py",
    "tests/system/test_batch_failover.py",
    "tests/system/test_batches.py",
    "tests/system/test_failover.py",
    "tests/system/test_losses.py",
    "tests/system/test_model_switch.py",
    "tests/system/test_overload.py",
    "tests/system/test_partial_answers.py",
    "tests/system/test_resharding.py",
    "tests/system/test_scale.py",
    "tests/system/test_shard_down.py",
    "tests/system/test_site.py",
    # commands whose tests start clusters or services of their own
    "tests/api/test_certificate.py",
    "tests/cluster/test_backup.py",
    "tests/cluster/test_check.py",
    "tests/cluster/test_commands.py::test_a_killed_server_is_named",
    "tests/cluster/test_commands.py::test_an_attached_cluster",
    "tests/cluster/test_commands.py::test_an_interrupted_ingest",
    "tests/cluster/test_commands.py::test_up_ingest_ask_and_down",
    "tests/cluster/test_commands.py::test_pre_tokenization",
    "tests/cluster/test_commands.py::test_status_shows_that_documents_of_an_earlier",
    "tests/cluster/test_commands.py::test_the_demo",
    "tests/cluster/test_eval.py::test_a_running_cluster",
    "tests/cluster/test_eval.py::test_a_signal",
    "tests/cluster/test_eval.py::test_all_parts",
    "tests/cluster/test_eval.py::test_plain_questions_are_measured",
    "tests/cluster/test_joining.py",
    "tests/cluster/test_model_faults.py",
    "tests/cluster/test_passwords.py",
    "tests/cluster/test_restore_interrupted.py",
    "tests/cluster/test_tls.py",
    "tests/cluster/test_traces.py",
    "tests/contract/test_packaging.py::test_in_",
    # processes that are killed or interrupted again and again
    "tests/functions/test_inference_workers.py",
    "tests/functions/test_noted.py",
    "tests/functions/test_reader_followers.py",
    "tests/functions/test_shared_shard.py",
    "tests/gears/test_blocking_functions.py::test_a_timeout_in_an_atomic_block",
    "tests/gears/test_blocking_functions.py::test_an_endless_trigger",
    "tests/gears/test_client_tracking.py::test_disconnecting_clients",
    "tests/gears/test_cluster_runs.py",
    "tests/gears/test_compiled_files.py",
    "tests/gears/test_convergence.py",
    "tests/gears/test_inference_reloads.py",
    "tests/gears/test_inference_server.py",
    "tests/gears/test_inference_workers.py",
    "tests/gears/test_memory.py",
    "tests/gears/test_parts_without_origin.py",
    "tests/gears/test_sections.py",
    "tests/gears/test_worker_tls.py",
    "tests/gears/test_young_clusters.py",
    "tests/module/test_supervisor.py::test_restarts_leak_nothing",
    # many random steps, or whole sets of questions
    "tests/client/test_living_answers.py",
    "tests/functions/test_document_scripts.py::test_no_stale_answer_in_random",
    *MODEL_SUITE,
    "tests/unit/evaluation/test_choice_fit.py",
)

# The module and its stored data: the tests that detect first that servers differ.
QUICK_ON_ALL = (
    "tests/functions/test_document_scripts.py",
    "tests/gears/test_client_tracking.py",
    "tests/gears/test_keymiss.py",
    "tests/gears/test_rights.py",
    "tests/module/test_access.py",
    "tests/module/test_atomic.py",
    "tests/module/test_environment.py",
    "tests/module/test_hook.py",
    "tests/module/test_index_data.py",
    "tests/module/test_index_moves.py",
    "tests/module/test_jobs.py",
    "tests/module/test_link.py",
    "tests/module/test_notes.py",
    "tests/module/test_registry.py",
    "tests/module/test_rights.py",
    "tests/module/test_supervisor.py",
)


# Formation of clusters, failover, migrating slots, rights, TLS, Lua, keyspace events and stored data.
ON_ALL = (
    *QUICK_ON_ALL,
    "tests/client/test_key_scripts.py",
    "tests/cluster/test_fake_primary.py",
    "tests/cluster/test_inspection.py",
    "tests/cluster/test_joining.py",
    "tests/cluster/test_local_cluster.py",
    "tests/cluster/test_resharding.py",
    "tests/cluster/test_tls.py",
    "tests/cluster/test_writability.py",
    "tests/contract/",
    "tests/functions/test_collection_rights.py",
    "tests/functions/test_moved_failures.py",
    "tests/functions/test_moved_guidance.py",
    "tests/functions/test_moved_listing.py",
    "tests/functions/test_moved_partition.py",
    "tests/functions/test_service_rights.py",
    "tests/gears/test_convergence.py",
    "tests/gears/test_forbidden.py",
    "tests/gears/test_promotion.py",
    "tests/gears/test_sources.py",
    "tests/gears/test_streams.py",
    "tests/gears/test_worker_tls.py",
    "tests/gears/test_young_clusters.py",
    "tests/module/test_ai_data.py",
    "tests/module/test_bus.py",
    "tests/module/test_index_parts.py",
    "tests/module/test_index_watch.py",
    "tests/module/test_model_file.py",
    "tests/module/test_pause.py",
    "tests/module/test_registry_files.py",
    "tests/module/test_streams.py",
    "tests/module/test_tombstones.py",
    "tests/system/test_failover.py",
    "tests/system/test_shard_down.py",
)


def server_of(test: str) -> str:
    """The server that a test runs on, from its id; empty if the test does not depend on the server."""
    parameters = test.partition("::")[2].partition("[")[2].rstrip("]")
    found = re.match(r"(?:.*-)?(valkey|redis)(?:-.*)?$", parameters)
    return found[1] if found else ""


def is_wholly_long(path: str) -> bool:
    """Whether the quick selection leaves out all tests of a file, so that the file need not be imported."""
    return path.startswith(tuple(name for name in LONG if "::" not in name))


@dataclass(frozen=True)
class Run:
    """What a run selects.

    Attributes:
        further: the server programs after the first one.
        quick: `--quick`.
        everywhere: `--all-servers`.
        has_torch: whether torch is installed.
    """

    further: Collection[str]
    quick: bool = False
    everywhere: bool = False
    has_torch: bool = False

    def leaves_out(self, test: str, *, one_server: bool = False) -> bool:
        """Whether the run leaves out the test with this id. `one_server`: whether the test has this mark."""
        if (self.quick and test.startswith(LONG)) or (not self.has_torch and test.startswith(MODEL_SUITE)):
            return True
        if server_of(test) not in self.further:
            return False
        if self.everywhere:
            return one_server or test.startswith(SAME_ON_ALL)
        return one_server or not test.startswith(QUICK_ON_ALL if self.quick else ON_ALL)
