-- Shared by all document scripts: their keys, which are in one slot, and the removal of the data that was derived from
-- a version.
-- KEYS are the result of `documents.stored.document_keys`. The time for a removal does not depend on the length of the
-- document.
local PARAGRAPHS, DOCUMENT, OFFSETS, TOKENS, SENTENCE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ANSWERS, INDEX, PENDING, EPOCH = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
-- The name of the document in keys and in the hash of pending documents.
local NAME, TAG = DOCUMENT:match('^document:(.*):({[^{}]+})$')
-- The index knows a document by its encoded id without the collection: each collection has its own index.
local COLLECTION, ID = NAME:match('^([^%%]+)%%/(.*)$')
ID = ID or NAME
local CHUNK = 500
-- The part of the keys of the document's cached answers after `bertqa` or `bertqa@<model>`.
local MARK = TAG .. '_' .. NAME .. ':' .. TAG .. ':'

-- Returns the reply to a command, or fails with an error that names the key. Use it for keys whose removal would lose
-- data.
local function named(key, reply)
  if type(reply) == 'table' and reply.err then
    error({err = reply.err:match('^%u+') .. ' ' .. key .. ' cannot be used, remove it: ' .. reply.err})
  end
  return reply
end

-- Returns whether the collection of the document accepts documents. The default collection always does.
local function collection_stands()
  local list = 'collections:' .. TAG
  return not COLLECTION or named(list, redis.pcall('HGET', list, COLLECTION)) == 'ready'
end

-- Adds 1 to the epoch, the counter of the collection's changes in this partition. The first value of an epoch is the
-- time of its creation in milliseconds since 1970, so that no value occurs twice, even after FLUSHALL.
local function move_epoch()
  local epoch = redis.pcall('INCR', EPOCH)
  if type(epoch) == 'table' then
    discard(epoch.err, EPOCH)
    epoch = 1
  end
  if epoch == 1 then
    local now = redis.call('TIME')
    redis.call('SET', EPOCH, string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000) + 1))
  end
end

-- Returns whether a name from the set of answers is the key of an answer of this document. This check is necessary
-- because `drop_answers` deletes the named keys with the rights of the module.
local function is_answer(name)
  local at = name:sub(1, 6) == 'bertqa' and name:find('{', 1, true)
  return at and name:sub(at, at + #MARK - 1) == MARK
end

-- Deletes the cached answers of the document. `store_answer.lua` limits the number of these answers.
local function drop_answers()
  local members = redis.pcall('SMEMBERS', ANSWERS)
  if members.err then
    return discard(members.err, ANSWERS)
  end
  if #members == 0 then
    return
  end
  local names = {}
  for _, name in ipairs(members) do
    if is_answer(name) then
      names[#names + 1] = name
    end
  end
  for first = 1, #names, CHUNK do
    local some = {unpack(names, first, math.min(first + CHUNK - 1, #names))}
    redis.call('UNLINK', unpack(some))
    unlist_sentence_answers(TAG, some)
  end
  redis.call('UNLINK', ANSWERS)
end

-- The pending documents are the fields of a hash. The value of a document's field is its change note. When one of these
-- scripts makes a document pending, the note is the size of the text in bytes. For every change of a text that these
-- scripts did not make, the module adds 1 to the note; a missing note counts as 0 (native/corpus/notes.h). The field
-- with the empty name has the sum of all notes.
-- A worker reads the note before the text, and later passes the note to a script. If the stored note then differs, the
-- text has changed again, and the document stays pending. Otherwise the script settles the note: it removes the field.
-- `*` matches any note.

-- Removes the hash of pending documents because a note in the hash is damaged. Without notes, the worker does not know
-- which documents are pending. This function therefore removes the layout, too: if the layout is unknown, the next
-- sweep scans all documents of the partition (gears/functions/indexing/marks.py).
local function discard_notes(why)
  discard(why, PENDING)
  redis.pcall('HDEL', 'layout:' .. TAG, 'layout')
end

-- Returns the value of a field of the hash of pending documents as text; false if the field is missing. If the value is
-- damaged, removes the hash and returns false.
local function note_of(field)
  local note = redis.pcall('HGET', PENDING, field)
  if note and not tonumber(note) then
    discard_notes(type(note) == 'table' and note.err or 'a note is not a number')
    return false
  end
  return note
end

local function add_to_sum(bytes)
  local sum = redis.pcall('HINCRBY', PENDING, '', bytes)
  if type(sum) == 'table' then
    discard_notes(sum.err)
  end
  return sum
end

-- Settles the note of the document if it equals the note `seen`, or if `seen` is `*`.
local function no_longer_pending(seen)
  local bytes = note_of(NAME)
  if bytes and (seen == '*' or seen == bytes) then
    redis.call('HDEL', PENDING, NAME)
    -- An empty text has 0 bytes, and the server refuses -0.
    if add_to_sum(string.format('%.0f', 0 - bytes)) == 0 then
      redis.call('HDEL', PENDING, '')
    end
  end
end

-- Adds the document to the pending documents. `bytes` is the size of its text. Returns the sum of all notes.
local function make_pending(bytes)
  local before = note_of(NAME)
  redis.call('HSET', PENDING, NAME, bytes)
  local sum = add_to_sum(string.format('%.0f', bytes - (before or 0)))
  if type(sum) == 'table' then
    redis.call('HSET', PENDING, NAME, bytes, '', bytes)
    return bytes
  end
  return sum
end

local function pending_bytes()
  return tonumber(note_of('') or 0)
end

-- Removes the document from the index, and everything derived from its text.
local function drop_version()
  named(INDEX, redis.pcall('QA.INDEX.DEL', INDEX, ID))
  redis.call('UNLINK', OFFSETS, TOKENS, SENTENCE)
  drop_answers()
end
