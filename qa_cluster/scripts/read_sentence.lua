-- Everything that is needed to read one sentence, in one round trip and of one version.
-- KEYS: sentence hash, tensor, document, answer, flight. ARGV: number of the sentence.
-- Reply: nil where there is no such sentence, else text, tensor or nil, version, id, title, spans if there is no tensor,
-- and the answer if somebody else has stored it meanwhile (GETRANGE is GET by a name that is not hooked).
local text = redis.call('HGET', KEYS[1], ARGV[1])
if not text then
  return false
end
local tensor = redis.call('EXISTS', KEYS[2]) == 1 and redis.call('AI.TENSORGET', KEYS[2], 'BLOB')
local record = redis.call('HMGET', KEYS[3], 'version', 'id', 'title')
local spans = not tensor and redis.call('HGET', KEYS[3], 'spans')
return {text, tensor, record[1] or '', record[2] or '', record[3] or '', spans or '', redis.call('GETRANGE', KEYS[4], 0, -1)}
