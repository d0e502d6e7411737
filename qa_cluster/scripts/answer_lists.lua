-- Lists of cached answers with a limit of their total size. A list is a sorted set of keys in the order of their
-- creation. The score of a key is UNIT times its number in this order, plus the size of the answer in bytes, which is
-- less than UNIT. Another key has the sum of the sizes. `kept:{t}` and `kept-bytes:{t}` are the list and the sum of a
-- partition's sentence answers.
local UNIT = 1048576
-- The limit of evictions in one call. If a large answer follows very small ones, the sum can stay above the limit after
-- this call. The next calls then continue the eviction.
local MOST_STEPS = 128
-- The approximate overhead of the server per answer: entries of the key, of the sets that name it and of the TTL.
local ENTRY_BYTES = 400

-- Removes internal keys whose values are damaged: they have the wrong type or contain no numbers. `why` is the error
-- for the server's log. Users have no right to write these keys, but an administrator can. One such key must not stop
-- the writes of a whole partition.
local function discard(why, ...)
  redis.log(redis.LOG_WARNING, 'qa: removed ' .. table.concat({...}, ' and ') .. ', which had a damaged value: ' .. why)
  redis.call('UNLINK', ...)
end

-- Removes the given names from a list, and their sizes from the sum. A name is the key of an answer that is no longer
-- cached. There are at most some hundred names. A damaged list is removed; its answers still expire.
local function unlist(list, sum, names)
  if #names == 0 then
    return
  end
  local scores = redis.pcall('ZMSCORE', list, unpack(names))
  if scores.err then
    return discard(scores.err, list, sum)
  end
  local bytes, listed = 0, false
  for _, score in ipairs(scores) do
    bytes, listed = bytes + (tonumber(score or 0) % UNIT), listed or score
  end
  if not listed then
    return
  end
  redis.call('ZREM', list, unpack(names))
  if redis.call('EXISTS', list) == 0 then
    redis.call('UNLINK', sum)
    return
  end
  local left = redis.pcall('DECRBY', sum, string.format('%.0f', bytes))
  if type(left) == 'table' then
    discard(left.err, list, sum)
  end
end

local function unlist_sentence_answers(tag, names)
  unlist('kept:' .. tag, 'kept-bytes:' .. tag, names)
end

-- Appends the key `answer` of an answer of `bytes` bytes to a list, and adds the size to `sum`.
-- Returns the new sum of the list; nil and the error if the list or the sum is damaged.
local function append(list, sum, answer, bytes)
  local last = redis.pcall('ZRANGE', list, -1, -1, 'WITHSCORES')
  if last.err then
    return nil, last.err
  end
  local turn = last[2] and math.floor(tonumber(last[2]) / UNIT) + 1 or 1
  redis.call('ZADD', list, string.format('%.0f', turn * UNIT + bytes), answer)
  local total = redis.pcall('INCRBY', sum, bytes)
  if type(total) == 'table' then
    return nil, total.err
  end
  return total
end

-- Appends the key `answer` to a list before the answer is stored. `sum` is the key with the sum of the sizes, `bytes`
-- is the size of the answer, and `limit` is the limit of the sum. While the sum exceeds the limit, this function evicts
-- the oldest answers. It also removes expired answers from the start of the list. It calls `gone` with the key of each
-- answer that it removes.
local function list_newest(list, sum, answer, bytes, limit, gone)
  bytes = math.min(bytes + ENTRY_BYTES, UNIT - 1)
  local total, why = append(list, sum, answer, bytes)
  if not total then
    discard(why, list, sum)
    total = append(list, sum, answer, bytes)
  end
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
