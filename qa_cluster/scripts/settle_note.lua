-- Settles a change note (keys.lua) without a new version of the document, because the text is the same as before or
-- cannot be indexed.
-- ARGV: version that the document must still have (empty: no record), the change note.
-- Reply: status: `unchanged`, or `stale` if the document has a different version.
if (redis.call('HGET', DOCUMENT, 'version') or '') ~= ARGV[1] then
  return {'stale'}
end
no_longer_pending(ARGV[2])
return {'unchanged'}
