-- Stores the sentences of a document, if its version still stands and has none yet, or those of another splitter.
-- ARGV: tokens prefix, version, splitter, spans, sentence... Reply: status (stored, unchanged, stale).
local CHUNK = 500
local splitter = ARGV[3]
local record = redis.call('HMGET', DOCUMENT, 'version', 'sentences', 'splitter', 'spans')
if record[1] ~= ARGV[2] then
  return {'stale'}
end
if record[2] and record[3] == splitter then
  return {'unchanged'}
end
if record[2] and record[4] == ARGV[4] then
  -- Both splitters cut it alike: all that was made from the sentences stays.
  redis.call('HSET', DOCUMENT, 'splitter', splitter)
  return {'unchanged'}
end
if record[2] then
  -- Tokens, postings and answers were made from the sentences that go now.
  drop_version()
  move_epoch()
end

local count = #ARGV - 4
redis.call('UNLINK', SENTENCE)
redis.call('HSET', DOCUMENT, 'sentences', count, 'spans', ARGV[4], 'splitter', splitter)
for first = 0, count - 1, CHUNK do
  local fields = {}
  for i = first, math.min(first + CHUNK, count) - 1 do
    fields[#fields + 1] = i
    fields[#fields + 1] = ARGV[5 + i]
  end
  redis.call('HSET', SENTENCE, unpack(fields))
end
return {'stored'}
