"""Names, times and limits of the functions on the shards, for the code that registers, calls and configures them.

The functions themselves run in the shards' workers (`gears/functions`); services, clients and the set-up of a cluster
use them by these names.
"""

from __future__ import annotations

# All functions are registered by one script, under this session's id: registered again, it takes the old one's place.
SESSION = "qa-functions"

RANK_TRIGGER = "qa.rank"
READ_TRIGGER = "qa.read"
PIPELINE_TRIGGER = "qa.pipeline"
READER_TRIGGER = "qa.reader"
MODELS_TRIGGER = "qa.models"
# Argument of `qa.models`: each reader comes with its manifest.
WITH_MANIFESTS = "manifests"

# The longest question, in code points, and how many requests of `qa.pipeline` a shard works on at once. A service may
# allow less, never more.
MAX_QUESTION_CHARS = 4096
MAX_PIPELINE_REQUESTS = 64

# Option of the module (`RG.CONFIGSET`): how long a shard keeps what one sentence answers to a question.
SENTENCE_ANSWER_TTL_OPTION = "qa.sentence-answer-ttl-seconds"
SENTENCE_ANSWER_TTL_SECONDS = 86_400

# After so long a shard tries again to get a reader ready that it could not: memory may have become free.
WARM_AGAIN_SECONDS = 5.0
