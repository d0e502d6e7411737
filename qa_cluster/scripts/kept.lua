-- The cached answers of a partition's sentences: `kept:{t}` has their keys in the order of their making, and in the same
-- number their bytes; `kept-bytes:{t}` is the sum of these.
local UNIT = 1048576

-- Forgets answers that are not kept any more. There are at most some hundreds of names.
local function forget_kept(tag, names)
  local kept, sum = 'kept:' .. tag, 'kept-bytes:' .. tag
  if #names == 0 or redis.call('EXISTS', kept) == 0 then
    return
  end
  local bytes = 0
  for _, score in ipairs(redis.call('ZMSCORE', kept, unpack(names))) do
    bytes = bytes + (tonumber(score or 0) % UNIT)
  end
  redis.call('ZREM', kept, unpack(names))
  if redis.call('EXISTS', kept) == 0 then
    redis.call('UNLINK', sum)
  else
    redis.call('DECRBY', sum, string.format('%.0f', bytes))
  end
end
