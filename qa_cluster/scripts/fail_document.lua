-- Marks a document as failed if its version is still current: no worker tries to index it again. A write of the
-- document replaces the record, and with it the mark.
-- KEYS: the keys of keys.lua, then the failures of the partition.
-- ARGV: version, reason, change note that is settled (keys.lua).
-- Reply: status (failed, stale).
local version, reason = ARGV[1], ARGV[2]
if redis.call('HGET', DOCUMENT, 'version') ~= version then
  return {'stale'}
end
redis.call('HSET', DOCUMENT, 'failed', version, 'failure', reason)
redis.call('HSET', KEYS[11], NAME, 'failed ' .. version .. ' ' .. reason)
no_longer_pending(ARGV[3])
return {'failed'}
