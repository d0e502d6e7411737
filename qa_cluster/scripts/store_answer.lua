-- Caches the answer of one sentence if the sentence and the version of its document are unchanged.
-- KEYS: text, sentence offsets, document, sentence hash, answer, set of the document's answers, list of the partition's
-- sentence answers, sum of their sizes, flight.
-- `flight` is a key that never exists. Because of it, the server refuses the script while the slot migrates.
-- ARGV: version, number of the sentence, its text, answer, TTL in seconds, limit of answers of a document, limit of
-- bytes of all answers of the partition.
-- Reply: 1 if stored, 0 if the document has changed.
-- The set of answers has no TTL, because a server at its memory limit evicts keys with a TTL first. Without the set, a
-- changed document could not invalidate its answers. Each call removes a few names of expired answers from the set, and
-- evicts answers before there are too many. While the answers of the partition exceed their limit, the oldest answers
-- are evicted.
local PRUNE = 2
local ANSWER, ANSWERS, KEPT, KEPT_BYTES = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local TAG = KEPT:match('{[^{}]+}$')

local function no_answer_of_its_document(answer)
  redis.call('SREM', 'answers:' .. answer:match('^bertqa[^{]*{[^}]+}_([^{}]*:{[^}]+}):'), answer)
end

local width, count = offsets()
local index, text = tonumber(ARGV[2]), nil
if width == 0 then
  text = redis.call('HGET', KEYS[4], ARGV[2])
elseif index < count then
  text = select(2, sentences_between(width, index, index))
end
if (redis.call('HGET', KEYS[3], 'version') or '') ~= ARGV[1] or text ~= ARGV[3] then
  return 0
end
local some = redis.pcall('SRANDMEMBER', ANSWERS, PRUNE)
if some.err then
  discard(some.err, ANSWERS)
end
for _, key in ipairs(some) do
  if redis.call('EXISTS', key) == 0 then
    redis.call('SREM', ANSWERS, key)
    unlist_sentence_answers(TAG, {key})
  end
end
if redis.call('SCARD', ANSWERS) >= tonumber(ARGV[6]) then
  local gone = redis.call('SPOP', ANSWERS, PRUNE)
  redis.call('UNLINK', unpack(gone))
  unlist_sentence_answers(TAG, gone)
end
if redis.call('EXISTS', ANSWER) == 0 then
  unlist_sentence_answers(TAG, {ANSWER})
  -- Three keys contain the name of the answer: its own key and both sets.
  list_newest(KEPT, KEPT_BYTES, ANSWER, 3 * #ANSWER + #ARGV[4], tonumber(ARGV[7]), no_answer_of_its_document)
end
redis.call('SET', ANSWER, ARGV[4], 'EX', ARGV[5])
redis.call('SADD', ANSWERS, ANSWER)
return 1
