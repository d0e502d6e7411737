-- Lists of cached answers with a limit of their total size. A list is a sorted set of keys in the order of their
-- creation; the score also holds the size in bytes. Another key has the sum of the sizes. `kept:{t}` and
-- `kept-bytes:{t}` are the list and the sum of a partition's sentence answers.
local UNIT = 1048576
-- So many of the smallest answers make room for the largest one: the loop can always bring the sum below the limit.
local MOST_STEPS = 128
-- The approximate overhead of the server per answer: entries of the key, of the sets that name it and of the TTL.
local ENTRY_BYTES = 400

-- Takes answers that are no longer cached out of a list. There are at most some hundreds of names.
local function unlist(list, sum, names)
  if #names == 0 or redis.call('EXISTS', list) == 0 then
    return
  end
  local bytes = 0
  for _, score in ipairs(redis.call('ZMSCORE', list, unpack(names))) do
    bytes = bytes + (tonumber(score or 0) % UNIT)
  end
  redis.call('ZREM', list, unpack(names))
  if redis.call('EXISTS', list) == 0 then
    redis.call('UNLINK', sum)
  else
    redis.call('DECRBY', sum, string.format('%.0f', bytes))
  end
end

local function unlist_sentence_answers(tag, names)
  unlist('kept:' .. tag, 'kept-bytes:' .. tag, names)
end

-- Appends an answer that is about to be stored to a list. While the list exceeds its limit, this function evicts the
-- oldest answers, and entries of expired answers before them. It calls `gone` with the key of each.
local function list_newest(list, sum, answer, bytes, limit, gone)
  bytes = math.min(bytes + ENTRY_BYTES, UNIT - 1)
  local newest = redis.call('ZRANGE', list, -1, -1, 'WITHSCORES')[2]
  local turn = newest and math.floor(tonumber(newest) / UNIT) + 1 or 1
  redis.call('ZADD', list, string.format('%.0f', turn * UNIT + bytes), answer)
  local total = redis.call('INCRBY', sum, bytes)
  for _ = 1, MOST_STEPS do
    local oldest = redis.call('ZRANGE', list, 0, 0)[1]
    if oldest == answer or (total <= limit and redis.call('EXISTS', oldest) == 1) then
      break
    end
    redis.call('UNLINK', oldest)
    gone(oldest)
    unlist(list, sum, {oldest})
    total = tonumber(redis.call('GET', sum) or 0)
  end
end
