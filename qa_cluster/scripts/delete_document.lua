-- Removes a document and everything derived from it, at once.
-- ARGV: mode, condition, note of the changes that are dealt with (keys.lua). Mode `delete` removes the text too; `gone`
-- cleans up after a client removed it, `unreadable` after it wrote one that is none, which stays.
-- Condition: `*` none, else the version the document must have.
-- Reply: status (deleted, missing, conflict, stale), version that stood before.
local mode, condition = ARGV[1], ARGV[2]
local current = redis.call('HGET', DOCUMENT, 'version')
local exists = redis.call('EXISTS', PARAGRAPHS) == 1

if not current and not exists then
  no_longer_pending(ARGV[3])
  return {'missing', ''}
end
if mode == 'gone' and exists then
  return {'stale', current or ''}
end
if condition ~= '*' and condition ~= (current or '') then
  return {'conflict', current or ''}
end

drop_version()
no_longer_pending(ARGV[3])
redis.call('UNLINK', DOCUMENT)
if mode ~= 'unreadable' then
  redis.call('UNLINK', PARAGRAPHS)
end
move_epoch()
return {'deleted', current or ''}
