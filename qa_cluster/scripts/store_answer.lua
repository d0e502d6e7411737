-- Caches the answer of one sentence, if the version it was read from still stands.
-- KEYS: text, places, document, sentence hash, answer, answers, flight.
-- ARGV: version, number of the sentence, its text, answer, TTL in seconds, most answers of a document.
-- Reply: 1 if stored, 0 if the document has changed.
-- The set of answers has no TTL of its own: were it evicted before the answers, a changed document could not drop them.
-- Names of expired answers are picked out a few at a time instead, and answers are dropped before there are too many.
local PRUNE = 2
local ANSWER, ANSWERS = KEYS[5], KEYS[6]
local width, count = places()
local index, text = tonumber(ARGV[2]), nil
if width == 0 then
  text = redis.call('HGET', KEYS[4], ARGV[2])
elseif index < count then
  text = select(2, stretch(width, index, index))
end
if (redis.call('HGET', KEYS[3], 'version') or '') ~= ARGV[1] or text ~= ARGV[3] then
  return 0
end
for _, key in ipairs(redis.call('SRANDMEMBER', ANSWERS, PRUNE)) do
  if redis.call('EXISTS', key) == 0 then
    redis.call('SREM', ANSWERS, key)
  end
end
if redis.call('SCARD', ANSWERS) >= tonumber(ARGV[6]) then
  redis.call('UNLINK', unpack(redis.call('SPOP', ANSWERS, PRUNE)))
end
redis.call('SET', ANSWER, ARGV[4], 'EX', ARGV[5])
redis.call('SADD', ANSWERS, ANSWER)
return 1
