-- Caches the answer of one sentence, if the version it was read from still stands.
-- KEYS: answer, document, sentence hash, answers, flight. ARGV: version, number of the sentence, its text, answer, TTL in seconds.
-- Reply: 1 if stored, 0 if the document has changed.
-- The set of answers has no TTL of its own: were it evicted before the answers, a changed document could not drop them.
-- Names of expired answers are picked out a few at a time instead.
local PRUNE = 2
if (redis.call('HGET', KEYS[2], 'version') or '') ~= ARGV[1] or redis.call('HGET', KEYS[3], ARGV[2]) ~= ARGV[3] then
  return 0
end
for _, key in ipairs(redis.call('SRANDMEMBER', KEYS[4], PRUNE)) do
  if redis.call('EXISTS', key) == 0 then
    redis.call('SREM', KEYS[4], key)
  end
end
redis.call('SET', KEYS[1], ARGV[4], 'EX', ARGV[5])
redis.call('SADD', KEYS[4], KEYS[1])
return 1
