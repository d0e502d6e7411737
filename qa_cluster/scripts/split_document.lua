-- Stores the sentences of a document, if its version still stands and has none yet.
-- ARGV: tokens prefix, version, spans, sentence... Reply: status (stored, unchanged, stale).
local CHUNK = 500
local record = redis.call('HMGET', DOCUMENT, 'version', 'sentences')
if record[1] ~= ARGV[2] then
  return {'stale'}
end
if record[2] then
  return {'unchanged'}
end

local count = #ARGV - 3
redis.call('UNLINK', SENTENCE)
redis.call('HSET', DOCUMENT, 'sentences', count, 'spans', ARGV[3])
for first = 0, count - 1, CHUNK do
  local fields = {}
  for i = first, math.min(first + CHUNK, count) - 1 do
    fields[#fields + 1] = i
    fields[#fields + 1] = ARGV[4 + i]
  end
  redis.call('HSET', SENTENCE, unpack(fields))
end
return {'stored'}
