-- Stores a new version of a document and removes everything derived from the previous version, in one step.
-- ARGV: mode, condition, id, title, metadata, version, length, text, source (empty: unknown).
-- Mode `put` writes the text. Mode `adopt` writes the record of a text that a client wrote with SET, if the stored text
-- is still the given text.
-- Condition: `*` for no condition; empty: the document must not exist; else the version that it must have.
-- Reply: status (stored, unchanged, conflict, stale, no_collection), current version, whether this call has created the
-- document, whether the current version is indexed, bytes of the pending documents in its partition, source of the
-- previous version.
local mode, condition, version, text, source = ARGV[1], ARGV[2], ARGV[6], ARGV[8], ARGV[9]
local record = named(DOCUMENT, redis.pcall('HMGET', DOCUMENT, 'version', 'tokenized', 'source', 'failed'))
local current, before = record[1] or '', record[3] or ''
local tokenized = (record[2] and record[2] == current) and 1 or 0

if not collection_stands() then
  return {'no_collection', current, 0, tokenized, pending_bytes(), before}
end
if condition ~= '*' and condition ~= current then
  return {'conflict', current, 0, tokenized, pending_bytes(), before}
end
-- A long text is copied only if it must be compared.
local is_stored = (mode == 'adopt' or current == version) and redis.pcall('GET', PARAGRAPHS) == text
if mode == 'adopt' and not is_stored then
  return {'stale', current, 0, tokenized, pending_bytes(), before}
end
-- A failed document that is written again is pending again.
if current == version and is_stored and record[4] ~= version then
  if source ~= '' and before == '' then
    redis.call('HSET', DOCUMENT, 'source', source)
  end
  return {'unchanged', current, 0, tokenized, pending_bytes(), before}
end

drop_version()
redis.call('UNLINK', DOCUMENT)
redis.call('HSET', DOCUMENT, 'id', ARGV[3], 'title', ARGV[4], 'metadata', ARGV[5], 'version', version, 'length', ARGV[7])
if source ~= '' then
  redis.call('HSET', DOCUMENT, 'source', source)
end
if mode == 'put' then
  redis.call('SET', PARAGRAPHS, text)
end
local pending = make_pending(#text)
move_epoch()
return {'stored', version, current == '' and 1 or 0, 0, pending, before}
