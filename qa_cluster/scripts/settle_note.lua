-- Marks the changes of a document that a change note records as processed.
-- ARGV: version that the document must still have (empty: no record), the change note.
-- Reply: status (unchanged, stale).
if (redis.call('HGET', DOCUMENT, 'version') or '') ~= ARGV[1] then
  return {'stale'}
end
no_longer_pending(ARGV[2])
return {'unchanged'}
