-- Replaces the metadata of a document. Its text, sentence offsets, tokens and terms in the index are unchanged.
-- ARGV: mode (set), condition, metadata, fields as QA.INDEX.PUT takes them, the version that the record must have for
-- the stored text, the version with the new metadata (both empty: the document has no record or no text).
-- Condition: `*` for no condition, else the version that the document must have.
-- Reply: status (stored, unchanged, conflict, missing, busy, no_collection), current version. `busy`: a client has
-- changed the text, and the worker has not written its record yet.
local condition, metadata, fields, expected, version = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local record = named(DOCUMENT, redis.pcall('HMGET', DOCUMENT, 'version', 'tokenized', 'failed', 'metadata'))
local current = record[1] or ''

if not collection_stands() then
  return {'no_collection', current}
end
if current == '' then
  return {redis.call('EXISTS', PARAGRAPHS) == 1 and 'busy' or 'missing', ''}
end
if condition ~= '*' and condition ~= current then
  return {'conflict', current}
end
if expected ~= current then
  return {redis.call('EXISTS', PARAGRAPHS) == 1 and 'busy' or 'missing', current}
end
if record[4] == metadata then
  return {'unchanged', current}
end

-- A pending document is indexed later, with the new metadata.
if record[2] == current then
  named(INDEX, redis.pcall('QA.INDEX.CHANGE', INDEX, ID, fields))
  redis.call('HSET', DOCUMENT, 'tokenized', version)
end
if record[3] == current then
  redis.call('HSET', DOCUMENT, 'failed', version)
end
redis.call('HSET', DOCUMENT, 'metadata', metadata, 'version', version)
-- The cached answers contain the previous version, so they are invalid.
drop_answers()
move_epoch()
return {'stored', version}
