-- Makes a file visible after its contents were stored.
-- KEYS: sizes of the owner's files, files of the owner, record of the file.
-- ARGV: id of the file, its bytes, time of expiry (s), time of creation (µs), fields of the record (names and values).
-- Reply: 1, or 0 if the reservation has expired and was removed.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ':' .. ARGV[3])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
redis.call('HSET', KEYS[3], unpack(ARGV, 5))
return 1
