-- Returns sentences of one version of a document with their neighbours, for a search, in one round trip.
-- KEYS: text, sentence offsets, document, epoch, flight.
-- `flight` is a key that never exists. Because of it, the server refuses the script while the slot migrates.
-- ARGV: neighbours on each side, whether to return the metadata (1 or 0), number of each sentence (from 0).
-- Reply: nil if the document does not exist. Else epoch, version, title, metadata, width of a record, and for each
-- sentence a list of the number of the first sentence, the records and the text; the list is empty if the sentence does
-- not exist.
local AROUND = tonumber(ARGV[1])
local record = redis.call('HMGET', KEYS[3], 'version', 'title', ARGV[2] == '1' and 'metadata' or 'none')
if not record[1] then
  return false
end
local width, count = offsets()
local passages = {}
for a = 3, #ARGV do
  local index, passage = tonumber(ARGV[a]), {}
  if index < count then
    local first = math.max(index - AROUND, 0)
    local found, text = sentences_between(width, first, math.min(index + AROUND, count - 1))
    passage = {first, found, text}
  end
  passages[#passages + 1] = passage
end
return {redis.call('GET', KEYS[4]) or '0', record[1], record[2] or '', record[3] or '', width, passages}
