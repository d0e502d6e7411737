-- Everything that is needed to read one sentence with its neighbours, in one round trip and of one version.
-- KEYS: sentence hash, tensor, document, answer, flight. ARGV: number of the sentence, prefix of the tensors, budget of tokens,
-- most sentences on a side, fingerprint of the tokenizer (the first bytes of its tensors).
-- Reply: what read_sentence gives, and text, tensor of each sentence before it, the nearest first, and of each behind it.
local INDEX, BUDGET, MOST = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
local TOKENS, FINGERPRINT = ARGV[2], ARGV[5]
local COLUMN = 12

local text = redis.call('HGET', KEYS[1], ARGV[1])
if not text then
  return false
end
local complete = true

local function tensor_at(key)
  local tensor = redis.call('EXISTS', key) == 1 and redis.call('AI.TENSORGET', key, 'BLOB')
  complete = complete and tensor
  return tensor
end

-- Tokens of a sentence; none that count where they are missing or another tokenizer's: they will be made anew.
local function count(tensor)
  return tensor and tensor:sub(1, #FINGERPRINT) == FINGERPRINT and #tensor / COLUMN - 1 or 0
end

local function neighbours(step, room)
  local found = {}
  for i = INDEX + step, INDEX + step * MOST, step do
    local field = string.format('%d', i)
    local near = i >= 0 and redis.call('HGET', KEYS[1], field)
    if not near then
      break
    end
    local tensor = tensor_at(TOKENS .. field)
    room = room - count(tensor)
    if room < 0 then
      break
    end
    found[#found + 1] = near
    found[#found + 1] = tensor
  end
  return found
end

local tensor = tensor_at(KEYS[2])
local record = redis.call('HMGET', KEYS[3], 'version', 'id', 'title')
local room = BUDGET - count(tensor)
local left, right = {}, {}
-- Of sentences without a document nobody knows where they stand.
if record[1] and room >= 0 then
  left, right = neighbours(-1, room), neighbours(1, room)
end
local spans = not complete and redis.call('HGET', KEYS[3], 'spans')
local answer = redis.call('GETRANGE', KEYS[4], 0, -1)
return {text, tensor, record[1] or '', record[2] or '', record[3] or '', spans or '', answer, left, right}
