-- Stores a new version of a document and removes everything derived from the old one, at once.
-- ARGV: mode, condition, id, title, metadata, version, length, text.
-- Mode `put` writes the text; `adopt` gives a text that a client wrote with SET its record, if it is still that text.
-- Condition: `*` none, empty: the document must not exist, else the version it must have.
-- Reply: status (stored, unchanged, conflict, stale), version that stands now, whether it was new, whether questions find
-- it, bytes of the texts in its partition that wait for their worker.
local mode, condition, version, text = ARGV[1], ARGV[2], ARGV[6], ARGV[8]
local record = redis.call('HMGET', DOCUMENT, 'version', 'tokenized')
local current = record[1] or ''
local stored = redis.call('GET', PARAGRAPHS)
local tokenized = (record[2] and record[2] == current) and 1 or 0

if condition ~= '*' and condition ~= current then
  return {'conflict', current, 0, tokenized, pending_bytes()}
end
if mode == 'adopt' and stored ~= text then
  return {'stale', current, 0, tokenized, pending_bytes()}
end
if current == version and stored == text then
  return {'unchanged', current, 0, tokenized, pending_bytes()}
end

drop_version()
redis.call('UNLINK', DOCUMENT)
redis.call('HSET', DOCUMENT, 'id', ARGV[3], 'title', ARGV[4], 'metadata', ARGV[5], 'version', version, 'length', ARGV[7])
if mode == 'put' then
  redis.call('SET', PARAGRAPHS, text)
end
make_pending(#text)
move_epoch()
return {'stored', version, current == '' and 1 or 0, 0, pending_bytes()}
