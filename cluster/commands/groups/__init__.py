"""The groups of subcommands: `qa-cluster model`, `documents`, `collections`, `keys`, `jobs`, `kafka` and others.

The names of the groups end in `_group`. Otherwise, the import of a module of this package, such as `documents`, would
replace the group of the same name, because it sets an attribute of this package with the module's name.
"""

from __future__ import annotations

from ...terminal.lazy_commands import PASSED_ON, LazyCommand, lazy_group

_MODEL = f"{__package__.rpartition('.')[0]}.model"

model_group = lazy_group(
    {
        **{
            name: LazyCommand(f"{_MODEL}.programs", name, PASSED_ON) for name in ("mine", "train", "export", "evaluate")
        },
        **{name: LazyCommand(f"{_MODEL}.{name}", name) for name in ("card", "get", "load", "use", "unload", "bench")},
        "list": LazyCommand(f"{_MODEL}.list", "list_readers"),
    },
    "Train, export and measure readers, load them on the shards, and set the default reader.",
)
documents_group = lazy_group(
    {
        "list": LazyCommand(f"{__package__}.documents", "list_documents"),
        **{name: LazyCommand(f"{__package__}.documents", name) for name in ("show", "count", "update", "delete")},
    },
    "List, count, show, update and delete the stored documents.",
)
collections_group = lazy_group(
    {
        "list": LazyCommand(f"{__package__}.collections", "list_collections"),
        **{name: LazyCommand(f"{__package__}.collections", name) for name in ("create", "count", "fields", "delete")},
    },
    "List, create, count and delete collections of documents, and show their metadata fields.",
)
keys_group = lazy_group(
    {
        "create": LazyCommand(f"{__package__}.keys", "create"),
        "import": LazyCommand(f"{__package__}.keys", "import_keys"),
        "list": LazyCommand(f"{__package__}.keys", "list_keys"),
        **{name: LazyCommand(f"{__package__}.keys", name) for name in ("revoke", "clear")},
    },
    "Create, import, list and revoke the API keys of the REST service. Once a key exists, every request needs a key.",
)
jobs_group = lazy_group(
    {
        "list": LazyCommand(f"{__package__}.jobs", "list_jobs"),
        **{name: LazyCommand(f"{__package__}.jobs", name) for name in ("work", "show", "cancel")},
    },
    "Run the workers for batches of requests (POST /v1/batches), and list, show and cancel batches.",
)
kafka_group = lazy_group(
    {name: LazyCommand(f"{__package__}.kafka", name) for name in ("answer", "ingest")},
    "Answer the questions of a Kafka topic, and store the documents of a topic. Needs the extra kafka.",
)
pins_group = lazy_group(
    {
        "list": LazyCommand(f"{__package__}.pins", "list_pins"),
        "set": LazyCommand(f"{__package__}.pins", "set_pin"),
        "delete": LazyCommand(f"{__package__}.pins", "delete_pin"),
    },
    "List, set and delete pinned answers, which results show first.",
)
synonyms_group = lazy_group(
    {
        "show": LazyCommand(f"{__package__}.pins", "show_synonyms"),
        "set": LazyCommand(f"{__package__}.pins", "set_synonyms"),
        "delete": LazyCommand(f"{__package__}.pins", "delete_synonyms"),
    },
    "Show, set and delete the synonyms of a collection.",
)
