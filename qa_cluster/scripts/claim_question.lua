-- Reads a submitted question. If the lease of the question has expired, the caller becomes the holder of the question.
-- The holder is the process that answers the question.
-- KEYS: record of the question.
-- ARGV: name of the caller (empty: do not become the holder), duration of the lease (ms), limit of tries.
-- Reply: a state, the milliseconds until the record expires, and more:
--   missing
--   done: the status, the headers and the body of the response
--   running: the last error
--   claimed: the question, the id of its request
--   lost: the question, the id of its request; the limit of tries is reached
local found = redis.call('HMGET', KEYS[1], 'question', 'request', 'until', 'tries', 'detail', 'status', 'headers', 'body')
local left = redis.call('PTTL', KEYS[1])
if found[6] then
  return {'done', left, found[6], found[7], found[8]}
end
if not found[1] then
  return {'missing', 0}
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if ARGV[1] == '' or tonumber(found[3]) > now then
  return {'running', left, found[5] or ''}
end
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'until', string.format('%.0f', now + tonumber(ARGV[2])))
if tonumber(found[4]) >= tonumber(ARGV[3]) then
  return {'lost', left, found[1], found[2]}
end
redis.call('HINCRBY', KEYS[1], 'tries', 1)
return {'claimed', left, found[1], found[2]}
