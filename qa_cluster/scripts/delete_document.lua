-- Removes a document and everything derived from it in one step.
-- ARGV: mode, condition, change note that is settled (keys.lua). Mode `delete` also removes the text; `gone` cleans up
-- after a client removed the text; `unreadable` cleans up after a client wrote an invalid text, and keeps the text.
-- Condition: `*` for no condition, else the version that the document must have.
-- Reply: status (deleted, missing, conflict, stale), previous version.
local mode, condition = ARGV[1], ARGV[2]
local current = named(DOCUMENT, redis.pcall('HGET', DOCUMENT, 'version'))
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
