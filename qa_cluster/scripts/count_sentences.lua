-- Counts the sentences that are written with an API key, from one midnight (UTC) to the next.
-- KEYS: use of the API key (a hash).
-- ARGV: sentences per day (0: count without a limit), sentences to add (may be negative), number of the day whose count
-- is corrected (empty: today).
-- Reply, four numbers: 1, or 0 if the limit was reached; the current day, in days since 1970; the sentences of this day
-- (0 if the corrected day has ended); the seconds until this day ends.
local time = redis.call('TIME')
local day = math.floor(tonumber(time[1]) / 86400)
local rest = 86400 - tonumber(time[1]) % 86400
if ARGV[3] ~= '' and tonumber(ARGV[3]) ~= day then
  return {1, day, 0, rest}
end
if tonumber(redis.call('HGET', KEYS[1], 'day') or '-1') ~= day then
  redis.call('HSET', KEYS[1], 'day', day, 'sentences', 0)
end
local used = tonumber(redis.call('HGET', KEYS[1], 'sentences'))
if tonumber(ARGV[1]) > 0 and used >= tonumber(ARGV[1]) then
  return {0, day, used, rest}
end
used = math.max(used + tonumber(ARGV[2]), 0)
redis.call('HSET', KEYS[1], 'sentences', used)
return {1, day, used, rest}
