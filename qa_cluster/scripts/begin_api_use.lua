-- Counts one request of an API key unless it exceeds a limit of the key.
-- KEYS: use of the API key (a hash), its requests in flight (a sorted set).
-- ARGV: requests per second (0: no limit), concurrent requests (0: no limit), name of this request, milliseconds after
-- which the request no longer counts as running.
-- Reply: the limit that refuses the request (0: none, 1: requests per second, 2: concurrent requests), requests left in
-- this second, a time in microseconds, concurrent requests left. The time is the time until a refused request may be
-- retried or, if the request is not refused, until the full number of requests per second may start at once.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local rate, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local left, running = 0, 0
if most > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
  running = redis.call('ZCARD', KEYS[2])
  if running >= most then
    return {2, 0, 1000000, 0}
  end
end
local full = 0
if rate > 0 then
  -- `paced` is the time when all counted requests would have started, one after the other, at the rate of the limit.
  local step = 1000000 / rate
  local begun = tonumber(redis.call('HGET', KEYS[1], 'paced') or '0')
  local paced = math.max(now, math.min(begun, now + 1000000)) + step
  full = paced - now
  if full > 1000000.5 then
    return {1, 0, math.ceil(full - 1000000), math.max(most - running, 0)}
  end
  left = math.floor((1000000 - full) / step + 0.001)
  redis.call('HSET', KEYS[1], 'paced', string.format('%.3f', paced))
end
if most > 0 then
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + tonumber(ARGV[4]) * 1000), ARGV[3])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
  running = running + 1
end
return {0, left, math.ceil(full), math.max(most - running, 0)}
