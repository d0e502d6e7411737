-- Indexes a document and stores the places of its sentences, if its version still stands: from now on questions find it.
-- ARGV: version, splitter, analyzer, number of sentences, places, fields and sentences as QA.INDEX.PUT takes them.
-- Reply: status (stored, stale).
local version, splitter, places = ARGV[1], ARGV[2], ARGV[5]
local record = redis.call('HMGET', DOCUMENT, 'version', 'splitter')
if record[1] ~= version then
  return {'stale'}
end
if record[2] ~= splitter and redis.call('GET', PLACES) ~= places then
  -- Tokens and answers were made from the sentences that go now.
  redis.call('UNLINK', TOKENS)
  drop_answers()
end

redis.call('SET', PLACES, places)
redis.call('QA.INDEX.PUT', INDEX, ID, ARGV[6], ARGV[7])
-- The sentences and the fields that go are those of earlier versions, and of a client that wrote beside the document.
redis.call('UNLINK', SENTENCE)
redis.call('HDEL', DOCUMENT, 'spans', 'tokenizer', 'attempt')
redis.call('HSET', DOCUMENT, 'sentences', ARGV[4], 'splitter', splitter, 'analyzer', ARGV[3], 'tokenized', version)
no_longer_pending()
move_epoch()
return {'stored'}
