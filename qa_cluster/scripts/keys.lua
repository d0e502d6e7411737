-- Shared by all document scripts: their keys, which are in one slot, and the removal of what was derived from a
-- version.
-- KEYS are the result of `documents.stored.document_keys`. No removal takes longer for a longer document.
local PARAGRAPHS, DOCUMENT, OFFSETS, TOKENS, SENTENCE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ANSWERS, INDEX, PENDING, EPOCH = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
-- The name of the document in keys and in the hash of pending documents.
local NAME, TAG = DOCUMENT:match('^document:(.*):({[^{}]+})$')
-- The index knows a document by its encoded id without the collection: each collection has its own index.
local COLLECTION, ID = NAME:match('^([^%%]+)%%/(.*)$')
ID = ID or NAME
local CHUNK = 500

-- Whether the collection accepts documents; the default collection always exists.
local function collection_stands()
  return not COLLECTION or redis.call('HGET', 'collections:' .. TAG, COLLECTION) == 'ready'
end

-- An epoch starts at the time of its creation, so that no value occurs twice, not even after FLUSHALL.
local function move_epoch()
  if redis.call('EXISTS', EPOCH) == 0 then
    local now = redis.call('TIME')
    redis.call('SET', EPOCH, string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)))
  end
  redis.call('INCR', EPOCH)
end

-- `store_answer.lua` limits their number.
local function drop_answers()
  local names = redis.call('SMEMBERS', ANSWERS)
  for first = 1, #names, CHUNK do
    local some = {unpack(names, first, math.min(first + CHUNK - 1, #names))}
    redis.call('UNLINK', unpack(some))
    unlist_sentence_answers(TAG, some)
  end
  redis.call('UNLINK', ANSWERS)
end

-- The pending documents are the fields of a hash; the field with the empty name has the sum of their bytes. The module
-- adds 1 for every change of a text by another way than these scripts (native/corpus/notes.h). A worker therefore
-- passes the change note that it read before the text: if the note differs, the text has changed again and the document
-- stays pending. `*` matches any note.
local function no_longer_pending(seen)
  local bytes = redis.call('HGET', PENDING, NAME)
  if bytes and (seen == '*' or seen == bytes) then
    redis.call('HDEL', PENDING, NAME)
    if redis.call('HINCRBY', PENDING, '', -bytes) == 0 then
      redis.call('HDEL', PENDING, '')
    end
  end
end

local function make_pending(bytes)
  no_longer_pending('*')
  redis.call('HSET', PENDING, NAME, bytes)
  redis.call('HINCRBY', PENDING, '', bytes)
end

local function pending_bytes()
  return tonumber(redis.call('HGET', PENDING, '') or 0)
end

-- Removes the document from the index, and everything derived from its text.
local function drop_version()
  redis.call('QA.INDEX.DEL', INDEX, ID)
  redis.call('UNLINK', OFFSETS, TOKENS, SENTENCE)
  drop_answers()
end
