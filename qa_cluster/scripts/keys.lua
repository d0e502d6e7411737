-- What all document scripts share: their keys, which live in one slot, and the removal of what was derived from a version.
-- KEYS are those of `documents.document_keys`; the tensors of the document are named by the prefix in ARGV[1].
local PARAGRAPHS, DOCUMENT, SENTENCE, ANSWERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local DOCS, STATS, GARBAGE, EPOCH = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local TOKENS = ARGV[1]

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

-- Takes the document's number out of the ranking; its postings are removed later, from what is noted in the garbage list.
local function drop_index()
  local record = redis.call('HMGET', DOCUMENT, 'number', 'sentences', 'terms', 'terms_total', 'tokenized')
  if not record[1] then
    return false
  end
  redis.call('HDEL', DOCS, record[1])
  if record[5] then
    redis.call('HINCRBY', STATS, 'sentences', -tonumber(record[2]))
    redis.call('HINCRBY', STATS, 'terms', -tonumber(record[4]))
  end
  redis.call('RPUSH', GARBAGE,
    '{"number":' .. record[1] .. ',"sentences":' .. record[2] .. ',"terms":' .. record[3] .. '}')
  redis.call('HDEL', DOCUMENT, 'number', 'terms', 'terms_total', 'tokenized', 'tokenizer')
  return true
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
