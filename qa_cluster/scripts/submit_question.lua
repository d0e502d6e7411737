-- Stores a submitted question, unless its owner has too many submitted questions and results.
-- KEYS: list of the owner's questions and results, record of the question.
-- ARGV: id of the question, lifetime (ms), limit of questions and results of the owner, question, id of the request,
-- name of the process that holds the question, duration of the lease (ms).
-- Reply: 1 and the time when the question expires, in milliseconds since 1970; or 0 and the milliseconds until the
-- owner's next question or result expires.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then
  local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  return {0, math.max(0, tonumber(first[2] or now) - now)}
end
local expires = now + tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], string.format('%.0f', expires), ARGV[1])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
redis.call('HSET', KEYS[2], 'question', ARGV[4], 'request', ARGV[5], 'holder', ARGV[6],
  'until', string.format('%.0f', now + tonumber(ARGV[7])), 'tries', 1)
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {1, expires}
