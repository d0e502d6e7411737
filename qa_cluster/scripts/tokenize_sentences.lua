-- Stores tokens of sentences that a client wrote without a document: they can be read, but are not ranked.
-- ARGV: tokens prefix, then sentence, text, columns, tensor of each. Reply: how many were stored.
-- Answers go in any case: this runs because the sentences changed.
if redis.call('EXISTS', DOCUMENT) == 1 then
  return 0
end
drop_answers()
if redis.call('EXISTS', SENTENCE) == 0 then
  local i = 0
  while redis.call('UNLINK', TOKENS .. i) == 1 do
    i = i + 1
  end
  return 0
end
local stored = 0
for a = 2, #ARGV, 4 do
  if redis.call('HGET', SENTENCE, ARGV[a]) == ARGV[a + 1] then
    redis.call('AI.TENSORSET', TOKENS .. ARGV[a], 'INT32', 3, ARGV[a + 2], 'BLOB', ARGV[a + 3])
    stored = stored + 1
  end
end
return stored
