-- Nothing is left to do about a document's changes up to a note. ARGV: version it had then (empty: no record), the note.
-- Reply: status (unchanged, stale).
if (redis.call('HGET', DOCUMENT, 'version') or '') ~= ARGV[1] then
  return {'stale'}
end
no_longer_pending(ARGV[2])
return {'unchanged'}
