-- Keeps the whole answer to a question. When the partition's whole answers exceed their limit, the oldest go.
-- KEYS: answer, list of whole answers, their bytes, flight. ARGV: answer, TTL in seconds, most bytes of all of them.
local ANSWER, LIST, SUM = KEYS[1], KEYS[2], KEYS[3]

forget_listed(LIST, SUM, {ANSWER})
list_newest(LIST, SUM, ANSWER, 2 * #ANSWER + #ARGV[1], tonumber(ARGV[3]), function() end)
redis.call('SET', ANSWER, ARGV[1], 'EX', ARGV[2])
return 1
