"""The groups of subcommands: `qa-cluster model`, `documents`, `collections`, `keys` and `jobs`.

The names end in `_group`, because importing a module of this package sets an attribute with the module's name.
"""

from __future__ import annotations

from ...terminal.lazy_commands import PASSED_ON, LazyCommand, lazy_group

_MODEL = f"{__package__.rpartition('.')[0]}.model"

model_group = lazy_group(
    {
        **{
            name: LazyCommand(f"{_MODEL}.programs", name, PASSED_ON) for name in ("mine", "train", "export", "evaluate")
        },
        **{name: LazyCommand(f"{_MODEL}.{name}", name) for name in ("card", "load", "use", "unload", "bench")},
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
