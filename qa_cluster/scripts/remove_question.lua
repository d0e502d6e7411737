-- Removes a submitted question or its result.
-- KEYS: list, record.
-- ARGV: id.
-- Reply: 1, or 0 if it does not exist.
redis.call('ZREM', KEYS[1], ARGV[1])
return redis.call('UNLINK', KEYS[2])
