-- Creates a batch, unless the owner has too many batches.
-- KEYS: record of the batch, the owner's batches, open batches, record of the input file, sizes of the owner's files.
-- ARGV: id of the batch, time of creation (µs since 1970), limit of open batches, limit of batches, id of the input
-- file, time until which the input file is kept (s since 1970), fields of the record of the batch (names and values).
-- Reply: 1: the batch exists now, also if it existed before; 0: too many batches are open; -1: the input file is
-- missing; -2: too many batches are stored.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 1
end
if redis.call('EXISTS', KEYS[4]) == 0 then
  return -1
end
if redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[3]) then
  return 0
end
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[4]) then
  return -2
end
local bytes, expires = string.match(redis.call('HGET', KEYS[5], ARGV[5]) or '', '^(%d+):(%d+)$')
if not bytes then
  return -1
end
if tonumber(expires) < tonumber(ARGV[6]) then
  redis.call('HSET', KEYS[5], ARGV[5], bytes .. ':' .. ARGV[6])
  redis.call('HSET', KEYS[4], 'expires_at', ARGV[6])
end
redis.call('HSET', KEYS[1], unpack(ARGV, 7))
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1])
return 1
