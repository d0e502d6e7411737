-- Reserves space for a file of an owner, before its contents are stored.
-- KEYS: sizes of the owner's files.
-- ARGV: id of the file, bytes to reserve, time when the reservation expires, now, limit of the bytes of all files,
-- limit of files. Times are seconds since 1970.
-- Reply: {1, sum, files}: the space is reserved. {0, sum, files}: a limit would be exceeded. Sum and files are the
-- bytes and the number of the owner's other files that have not expired.
local function total_of(sizes, but, now)
  local total, files = 0, 0
  local found = redis.call('HGETALL', sizes)
  for at = 1, #found, 2 do
    local bytes, expires = string.match(found[at + 1], '^(%d+):(%d+)$')
    if found[at] ~= but and bytes and tonumber(expires) > now then
      total = total + tonumber(bytes)
      files = files + 1
    end
  end
  return total, files
end

local total, files = total_of(KEYS[1], ARGV[1], tonumber(ARGV[4]))
if total + tonumber(ARGV[2]) > tonumber(ARGV[5]) or files + 1 > tonumber(ARGV[6]) then
  return {0, total, files}
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ':' .. ARGV[3])
return {1, total, files}
