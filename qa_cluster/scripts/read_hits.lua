-- Sentences of one document as a search shows them, with their neighbours, in one round trip and of one version.
-- KEYS: text, places, document, epoch, flight. ARGV: neighbours on each side, number of each sentence.
-- Reply: nil where there is no such document, else epoch, version, title, metadata, bytes of a place, and for each sentence
-- a list: number of the first sentence of the stretch, places, text; empty where there is no such sentence.
local AROUND = tonumber(ARGV[1])
local record = redis.call('HMGET', KEYS[3], 'version', 'title', 'metadata')
if not record[1] then
  return false
end
local width, count = places()
local passages = {}
for a = 2, #ARGV do
  local index, passage = tonumber(ARGV[a]), {}
  if index < count then
    local first = math.max(index - AROUND, 0)
    local found, text = stretch(width, first, math.min(index + AROUND, count - 1))
    passage = {first, found, text}
  end
  passages[#passages + 1] = passage
end
return {redis.call('GET', KEYS[4]) or '0', record[1], record[2] or '', record[3] or '', width, passages}
