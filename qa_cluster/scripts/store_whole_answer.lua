-- Caches the whole answer to a question. While the partition's whole answers exceed their limit, the oldest answers are
-- evicted.
-- KEYS: answer, list of the partition's whole answers, sum of their sizes, flight.
-- `flight` is a key that never exists. Because of it, the server refuses the script while the slot migrates.
-- ARGV: answer, TTL in seconds, limit of bytes of all whole answers.
-- Reply: 1.
local ANSWER, LIST, SUM = KEYS[1], KEYS[2], KEYS[3]

unlist(LIST, SUM, {ANSWER})
list_newest(LIST, SUM, ANSWER, 2 * #ANSWER + #ARGV[1], tonumber(ARGV[3]), function() end)
redis.call('SET', ANSWER, ARGV[1], 'EX', ARGV[2])
return 1
