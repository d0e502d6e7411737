-- Indexes a document and stores the places of its sentences, if its version still stands: from now on questions find it.
-- ARGV: version, splitter, analyzer, number of sentences, places, fields and sentences as QA.INDEX.PUT takes them; or
-- instead of these two the place at which the index has a document that came in parts; last, the note of the document's
-- changes that its text has (keys.lua).
-- Reply: status (stored, stale).
local version, splitter, places, place = ARGV[1], ARGV[2], ARGV[5], ARGV[8]
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
  -- What was open has gone if the document was written or removed meanwhile, or had to give way to others.
  local reply = redis.pcall('QA.INDEX.COMMIT', INDEX, ID, place, ARGV[4])
  if reply.err then
    return string.find(reply.err, 'is not open', 1, true) and {'stale'} or reply
  end
end
if record[2] ~= splitter and redis.call('GET', PLACES) ~= places then
  -- Tokens and answers were made from the sentences that go now.
  redis.call('UNLINK', TOKENS)
  drop_answers()
end

redis.call('SET', PLACES, places)
-- The sentences and the fields that go are those of earlier versions, and of a client that wrote beside the document.
redis.call('UNLINK', SENTENCE)
redis.call('HDEL', DOCUMENT, 'spans', 'tokenizer', 'attempt')
redis.call('HSET', DOCUMENT, 'sentences', ARGV[4], 'splitter', splitter, 'analyzer', ARGV[3], 'tokenized', version)
no_longer_pending(ARGV[9])
move_epoch()
return {'stored'}
