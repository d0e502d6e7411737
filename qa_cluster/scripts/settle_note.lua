-- Settles the changes of a document up to a change note.
-- ARGV: version at that time (empty: no record), the note.
-- Reply: status (unchanged, stale).
if (redis.call('HGET', DOCUMENT, 'version') or '') ~= ARGV[1] then
  return {'stale'}
end
no_longer_pending(ARGV[2])
return {'unchanged'}
