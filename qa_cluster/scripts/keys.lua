-- What all document scripts share: their keys, which live in one slot, and the removal of what was derived from a version.
-- KEYS are those of `documents.document_keys`. None of the removals takes longer for a longer document.
local PARAGRAPHS, DOCUMENT, PLACES, TOKENS, SENTENCE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ANSWERS, INDEX, PENDING, EPOCH = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
-- What stands for the document in keys: it waits under this name.
local NAME, TAG = DOCUMENT:match('^document:(.*):({[^{}]+})$')
-- The index knows a document by its id as it stands in keys, without the collection, which has an index of its own.
local COLLECTION, ID = NAME:match('^([^%%]+)%%/(.*)$')
ID = ID or NAME
local CHUNK = 500

-- Whether documents may be written to the collection; the default one is always there.
local function collection_stands()
  return not COLLECTION or redis.call('HGET', 'collections:' .. TAG, COLLECTION) == 'ready'
end

-- An epoch begins at the time of its creation, so that no value comes twice, not even after the keys were flushed.
local function move_epoch()
  if redis.call('EXISTS', EPOCH) == 0 then
    local now = redis.call('TIME')
    redis.call('SET', EPOCH, string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)))
  end
  redis.call('INCR', EPOCH)
end

-- `store_answer.lua` bounds their number.
local function drop_answers()
  local names = redis.call('SMEMBERS', ANSWERS)
  for first = 1, #names, CHUNK do
    local some = {unpack(names, first, math.min(first + CHUNK - 1, #names))}
    redis.call('UNLINK', unpack(some))
    forget_kept(TAG, some)
  end
  redis.call('UNLINK', ANSWERS)
end

-- The documents that wait for their worker are the fields of a hash, the field without a name has the sum of their bytes.
-- The module adds 1 for every change of a text that is not by one of these scripts (native/corpus/notes.h), so a worker
-- says which note it had seen before it read the text: another one is of a later change, and stays. `*` is any note.
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

-- Takes the document out of the ranking and removes all that was made from its text.
local function drop_version()
  redis.call('QA.INDEX.DEL', INDEX, ID)
  redis.call('UNLINK', PLACES, TOKENS, SENTENCE)
  drop_answers()
end
