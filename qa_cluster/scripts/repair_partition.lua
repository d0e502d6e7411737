-- Removes internal keys of a partition that have a value of a wrong type. If it removes a key, the next sweep scans all
-- documents of the partition.
-- KEYS: pending documents, failed documents, layout, flight.
-- `flight` is a key that never exists. Because of it, the server refuses the script while the slot migrates.
-- Reply: number of removed keys.
local removed = 0
for i = 1, 3 do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'hash' and kind ~= 'none' then
    discard('it was a ' .. kind .. ', not a hash', KEYS[i])
    removed = removed + 1
  end
end
if removed > 0 then
  redis.call('HDEL', KEYS[3], 'layout')
end
return removed
