-- Marks a document as failed if its version is still current. No worker then tries to index the document again, until a
-- write replaces its record, which has the mark.
-- KEYS: the keys of keys.lua, then the failures of the partition.
-- ARGV: version of the document that failed, reason, change note that is settled (keys.lua).
-- Reply: status: `failed`, or `stale` if the document has a different version.
local version, reason = ARGV[1], ARGV[2]
if redis.call('HGET', DOCUMENT, 'version') ~= version then
  return {'stale'}
end
redis.call('HSET', DOCUMENT, 'failed', version, 'failure', reason)
redis.call('HSET', KEYS[11], NAME, 'failed ' .. version .. ' ' .. reason)
no_longer_pending(ARGV[3])
return {'failed'}
