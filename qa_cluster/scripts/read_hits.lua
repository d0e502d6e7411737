-- Sentences of one document as a search shows them, with their neighbours, in one round trip and of one version.
-- KEYS: sentence hash, document, epoch, flight. ARGV: prefix of the tensors, neighbours on each side, number of each sentence.
-- Reply: nil where there is no such document, else epoch, version, title, metadata, spans if a tensor is missing, and for
-- each sentence a list: number, text, start or -1 of each sentence around it that is there, in order.
local TOKENS, AROUND = ARGV[1], tonumber(ARGV[2])
local record = redis.call('HMGET', KEYS[2], 'version', 'title', 'metadata')
if not record[1] then
  return false
end
local complete = true

-- The second of a tensor's three rows begins with where the sentence starts, as four bytes.
local function start_of(number)
  local key = TOKENS .. number
  local tensor = redis.call('EXISTS', key) == 1 and redis.call('AI.TENSORGET', key, 'BLOB')
  if not tensor then
    complete = false
    return -1
  end
  return struct.unpack('<i4', tensor, #tensor / 3 + 1)
end

local passages = {}
for a = 3, #ARGV do
  local index, passage = tonumber(ARGV[a]), {}
  for i = math.max(index - AROUND, 0), index + AROUND do
    local number = string.format('%d', i)
    local text = redis.call('HGET', KEYS[1], number)
    if text then
      passage[#passage + 1] = i
      passage[#passage + 1] = text
      passage[#passage + 1] = start_of(number)
    end
  end
  passages[#passages + 1] = passage
end
local spans = not complete and redis.call('HGET', KEYS[2], 'spans')
return {redis.call('GET', KEYS[3]) or '0', record[1], record[2] or '', record[3] or '', spans or '', passages}
