-- Stores tokens and postings of a document, if its version still stands: in one step, or a large one in several.
-- ARGV: tokens prefix, terms prefix, version, splitter, tokenizer, encoded id, steps, number, sentences, sentence terms,
--   terms (JSON: term -> sentences), postings of this step (JSON: term -> [sentence, weight, ...]),
--   then sentence, columns, tensor of each sentence of this step.
-- Steps holds `b` (begin: a new number), `c` (commit: the document is ranked from now on), both or neither.
-- Reply: status (stored, stale), number.
local CHUNK = 500
local terms_prefix, version, splitter, tokenizer, steps = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[7]
local number, sentences, terms_total = ARGV[8], ARGV[9], ARGV[10]
local record = redis.call('HMGET', DOCUMENT, 'version', 'sentences', 'number', 'splitter')
if record[1] ~= version or record[2] ~= sentences or (record[4] or '') ~= splitter then
  return {'stale', ''}
end

if steps:find('b', 1, true) then
  if drop_index() then
    -- Answers read from the tokens of another tokenizer belong to another model.
    drop_answers()
  end
  number = tostring(redis.call('HINCRBY', STATS, 'next', 1))
  redis.call('HSET', DOCUMENT, 'number', number, 'terms', ARGV[11], 'terms_total', terms_total)
elseif record[3] ~= number then
  return {'stale', ''}
end

for a = 13, #ARGV, 3 do
  redis.call('AI.TENSORSET', TOKENS .. ARGV[a], 'INT32', 3, ARGV[a + 1], 'BLOB', ARGV[a + 2])
end
for term, postings in pairs(cjson.decode(ARGV[12])) do
  for first = 1, #postings, CHUNK * 2 do
    local members = {}
    for p = first, math.min(first + CHUNK * 2, #postings + 1) - 1, 2 do
      members[#members + 1] = postings[p + 1]
      members[#members + 1] = number .. '.' .. postings[p]
    end
    redis.call('ZADD', terms_prefix .. term, unpack(members))
  end
end

if steps:find('c', 1, true) then
  redis.call('HSET', DOCS, number, ARGV[6])
  redis.call('HINCRBY', STATS, 'sentences', sentences)
  redis.call('HINCRBY', STATS, 'terms', terms_total)
  redis.call('HSET', DOCUMENT, 'tokenized', version, 'tokenizer', tokenizer)
  move_epoch()
end
return {'stored', number}
