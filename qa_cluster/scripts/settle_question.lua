-- Changes the state of a submitted question.
-- KEYS: list of the owner's questions and results, record of the question.
-- ARGV: action, name of the process that holds the question, and more:
--   renew: duration of the lease (ms)
--   release: the reason; any process can then become the holder
--   finish: id of the question, milliseconds for which the result is kept, status, headers and body of the response
-- Reply: 1, or 0 if the record has expired or is finished. `renew` and `release` also reply 0 if the record has a
-- different holder.
local action = ARGV[1]
local found = redis.call('HMGET', KEYS[2], 'question', 'holder', 'status')
if not found[1] or found[3] then
  return 0
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if action == 'finish' then
  -- The first result counts, even if two processes answer.
  redis.call('HDEL', KEYS[2], 'question', 'request', 'holder', 'until', 'tries', 'detail')
  redis.call('HSET', KEYS[2], 'status', ARGV[5], 'headers', ARGV[6], 'body', ARGV[7])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[4])), ARGV[3])
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[4]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
  end
  return 1
end
if found[2] ~= ARGV[2] then
  return 0
end
if action == 'renew' then
  redis.call('HSET', KEYS[2], 'until', string.format('%.0f', now + tonumber(ARGV[3])))
else
  redis.call('HSET', KEYS[2], 'until', 0, 'detail', ARGV[3])
  redis.call('HINCRBY', KEYS[2], 'tries', -1)
end
return 1
