-- Removes a submitted question or its result.
-- KEYS: list of the owner's questions and results, record of the question.
-- ARGV: id of the question.
-- Reply: 1, or 0 if the record does not exist.
redis.call('ZREM', KEYS[1], ARGV[1])
return redis.call('UNLINK', KEYS[2])
