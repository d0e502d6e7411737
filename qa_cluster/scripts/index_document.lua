-- Stores the tokens of a document and indexes it, if its version still stands: in one step, or a large one in several.
-- ARGV: tokens prefix, version, splitter, tokenizer, steps, attempt, sentences, the document's sentences as QA.INDEX.PUT
--   takes them and its fields (both in the last step), then sentence, columns, tensor of each sentence of this step.
-- Steps holds `b` (begin: a new attempt), `c` (commit: the document is ranked from now on), both or neither.
-- Reply: status (stored, stale), attempt.
local version, splitter, tokenizer, steps = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local attempt, sentences = ARGV[6], ARGV[7]
local record = redis.call('HMGET', DOCUMENT, 'version', 'sentences', 'attempt', 'splitter')
if record[1] ~= version or record[2] ~= sentences or (record[4] or '') ~= splitter then
  return {'stale', ''}
end

if steps:find('b', 1, true) then
  if drop_index() then
    -- Answers read from the tokens of another tokenizer belong to another model.
    drop_answers()
  end
  attempt = tostring(redis.call('HINCRBY', DOCUMENT, 'attempt', 1))
elseif record[3] ~= attempt then
  return {'stale', ''}
end

for a = 10, #ARGV, 3 do
  redis.call('AI.TENSORSET', TOKENS .. ARGV[a], 'INT32', 3, ARGV[a + 1], 'BLOB', ARGV[a + 2])
end

if steps:find('c', 1, true) then
  redis.call('QA.INDEX.PUT', INDEX, ID, ARGV[9], ARGV[8])
  redis.call('HSET', DOCUMENT, 'tokenized', version, 'tokenizer', tokenizer)
  move_epoch()
end
return {'stored', attempt}
