"""Names, times and limits of the functions on the shards, for the code that registers, calls and configures them.

The functions themselves run in the shards' workers (`gears/functions`); services, clients and the set-up of a cluster
use them by these names.
"""

from __future__ import annotations

# One script registers all functions, under this session's id; registering it again replaces the earlier session.
SESSION = "qa-functions"

RANK_TRIGGER = "qa.rank"
READ_TRIGGER = "qa.read"
PIPELINE_TRIGGER = "qa.pipeline"
READER_TRIGGER = "qa.reader"
MODELS_TRIGGER = "qa.models"
SENTENCES_TRIGGER = "qa.sentences"
PARTITIONS_TRIGGER = "qa.partitions"
# In the reply to a call of a function that is not registered on the shard: it will be soon, or nobody has done it.
NOT_REGISTERED = "subcommand not found"
# Argument of `qa.models` that adds the manifest of each reader to the reply.
WITH_MANIFESTS = "manifests"

# The longest question, in code points, and how many requests of `qa.pipeline` a shard works on at once. A service may
# allow less, never more.
MAX_QUESTION_CHARS = 4096
MAX_PIPELINE_REQUESTS = 64
# Most sentences that one call of `qa.read` takes. A service asks for 64 at most.
MAX_READ_SENTENCES = 256
# Most sentences that one call of `qa.rank` may ask for; it is also the limit of an index.
MAX_RANK_COUNT = 1000

# Most sentences that one call of `qa.sentences` shows: reading them holds the shard for less than a millisecond.
MAX_SHOWN_SENTENCES = 100

# Option of the module (`RG.CONFIGSET`): how long a shard keeps a sentence's answer to a question.
SENTENCE_ANSWER_TTL_OPTION = "qa.sentence-answer-ttl-seconds"
SENTENCE_ANSWER_TTL_SECONDS = 86_400
# The same for how much memory these answers take in a partition.
SENTENCE_ANSWERS_OPTION = "qa.sentence-answers-mb"
SENTENCE_ANSWERS_MB = 64

# Setting of the module: what stands for the question in the keys of answers of sentences.
ANSWER_KEYS_SETTING = "qa.answer-keys"
TEXT, DIGEST = "text", "digest"

# After this time a shard tries again to warm a reader that could not be warmed: memory may have become free.
WARM_AGAIN_SECONDS = 5.0
