-- Indexes a document and stores its sentence offsets if its version is still current. Questions then find it.
-- ARGV: version, splitter, analyzer, number of sentences, sentence offsets, fields and sentences as QA.INDEX.PUT takes
-- them, place, change note that was read before the text (keys.lua). For a document that was sent in parts, `place` is
-- its open entry in the index, and fields and sentences are not used. Otherwise, `place` is empty.
-- Reply: status: `stored`, or `stale` if the document has a different version or its open entry is missing.
local version, splitter, offsets, place = ARGV[1], ARGV[2], ARGV[5], ARGV[8]
local record = redis.call('HMGET', DOCUMENT, 'version', 'splitter')
if record[1] ~= version then
  if place ~= '' then
    redis.call('QA.INDEX.ABORT', INDEX, ID, place)
  end
  return {'stale'}
end
if place == '' then
  redis.call('QA.INDEX.PUT', INDEX, ID, ARGV[6], ARGV[7])
else
  -- The open entry is missing if the document was written or removed meanwhile, or if other open entries replaced it.
  local reply = redis.pcall('QA.INDEX.COMMIT', INDEX, ID, place, ARGV[4])
  if reply.err then
    return string.find(reply.err, 'is not open', 1, true) and {'stale'} or reply
  end
end
if record[2] ~= splitter and redis.call('GET', OFFSETS) ~= offsets then
  -- Tokens and answers were computed from the previous sentences.
  redis.call('UNLINK', TOKENS)
  drop_answers()
end

redis.call('SET', OFFSETS, offsets)
-- Remove the sentences and fields of a client that has stored sentences without a document.
redis.call('UNLINK', SENTENCE)
redis.call('HDEL', DOCUMENT, 'spans', 'tokenizer', 'attempt', 'failed', 'failure')
redis.call('HSET', DOCUMENT, 'sentences', ARGV[4], 'splitter', splitter, 'analyzer', ARGV[3], 'tokenized', version)
no_longer_pending(ARGV[9])
move_epoch()
return {'stored'}
