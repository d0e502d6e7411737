-- Returns the data to read one sentence with its neighbours, from one version of a document, in one round trip.
-- KEYS: text, sentence offsets, document, tokens, sentence hash, answer, flight.
-- `flight` is a key that never exists. Because of it, the server refuses the script while the slot migrates.
-- ARGV: number of the sentence (from 0), limit of neighbours on a side, number of sentences in a block of tokens, 1 to
-- return the metadata.
-- Reply: nil if the sentence does not exist. Else number of the first sentence, width of a record, records, text,
-- version, id, title, the answer if another client has stored it meanwhile, number of the first block of tokens, the
-- blocks, the metadata if requested. A sentence without offsets (a client stores it without a document) is returned
-- alone, with its first code point instead of records.
local INDEX, AROUND, BLOCK = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
-- A GET of a missing answer starts the function that computes the answer (`ANSWER_KEYS`). GETRANGE starts no function.
local answer = redis.call('GETRANGE', KEYS[6], 0, -1)
local width, count = offsets()
local record = redis.call('HMGET', KEYS[3], 'version', 'id', 'title')
local metadata = ARGV[4] == '1' and redis.call('HGET', KEYS[3], 'metadata') or ''

if width == 0 then
  local text = redis.call('HGET', KEYS[5], ARGV[1])
  if not text then
    return false
  end
  local spans = redis.call('HGET', KEYS[3], 'spans')
  local span = spans and cjson.decode(spans)[INDEX + 1]
  return {INDEX, 0, span and string.format('%d', span[1]) or '', text, record[1] or '', record[2] or '', record[3] or '', answer, 0, {}, metadata}
end
if INDEX >= count or not record[1] then
  return false
end
local first, last = math.max(INDEX - AROUND, 0), math.min(INDEX + AROUND, count - 1)
local found, text = sentences_between(width, first, last)
local block, blocks = math.floor(first / BLOCK), {}
if redis.call('EXISTS', KEYS[4]) == 1 then
  for number = block, math.floor(last / BLOCK) do
    blocks[#blocks + 1] = redis.call('HGET', KEYS[4], string.format('%d', number)) or ''
  end
end
return {first, width, found, text, record[1], record[2] or '', record[3] or '', answer, block, blocks, metadata}
