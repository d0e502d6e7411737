-- Stores tokens of a document, one field per block of sentences, if its version is still current and is indexed with
-- the given splitter.
-- ARGV: version, splitter, then number and tokens of each block.
-- Reply: status: `stored`, or `stale` if the document has a different version or splitter, or is not indexed.
local record = redis.call('HMGET', DOCUMENT, 'version', 'splitter', 'tokenized')
if record[1] ~= ARGV[1] or record[2] ~= ARGV[2] or record[3] ~= ARGV[1] then
  return {'stale'}
end
redis.call('HSET', TOKENS, unpack(ARGV, 3))
return {'stored'}
