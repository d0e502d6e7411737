-- What all document scripts share: their keys, which live in one slot, and the removal of what was derived from a version.
-- KEYS are those of `documents.document_keys`; the tensors of the document are named by the prefix in ARGV[1].
local PARAGRAPHS, DOCUMENT, SENTENCE, ANSWERS, INDEX, EPOCH = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local TOKENS = ARGV[1]
-- The index knows a document by its id as it stands in keys, without the collection, which has an index of its own.
local NAME, TAG = DOCUMENT:match('^document:(.*):({[^{}]+})$')
local COLLECTION, ID = NAME:match('^([^%%]+)%%/(.*)$')
ID = ID or NAME

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

local function drop_answers()
  for _, key in ipairs(redis.call('SMEMBERS', ANSWERS)) do
    redis.call('UNLINK', key)
  end
  redis.call('UNLINK', ANSWERS)
end

-- Takes the document out of the ranking; whether it was there.
local function drop_index()
  redis.call('HDEL', DOCUMENT, 'tokenized', 'tokenizer')
  return redis.call('QA.INDEX.DEL', INDEX, ID) == 1
end

local function drop_version()
  local count = tonumber(redis.call('HGET', DOCUMENT, 'sentences') or 0)
  drop_index()
  -- Sentences that a client wrote itself have no count in the document's record.
  for _, i in ipairs(redis.call('HKEYS', SENTENCE)) do
    redis.call('UNLINK', TOKENS .. i)
  end
  for i = 0, count - 1 do
    redis.call('UNLINK', TOKENS .. i)
  end
  redis.call('UNLINK', SENTENCE)
  drop_answers()
end
