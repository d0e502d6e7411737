-- Attaches vectors to passages of a document if its version is still current and is indexed with the given splitter.
-- ARGV: version, splitter, then the encoder's digest, the dimensions, the number of passages that are already stored,
-- the number of all passages of the document, and the packed passages as QA.INDEX.EMBED takes them.
-- Reply: status: `stored`, or `stale` if the document or its passages in the index have changed.
local record = redis.call('HMGET', DOCUMENT, 'version', 'splitter', 'tokenized')
if record[1] ~= ARGV[1] or record[2] ~= ARGV[2] or record[3] ~= ARGV[1] then
  return {'stale'}
end
local stored = redis.call('QA.INDEX.EMBED', INDEX, ID, ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7])
return {stored == 1 and 'stored' or 'stale'}
