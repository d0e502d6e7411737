-- Removes a note that is not a document's, unless it has grown since. KEYS: pending. ARGV: name, note. Reply: 1 if removed.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return 0
end
redis.call('HDEL', KEYS[1], ARGV[1])
if redis.call('HINCRBY', KEYS[1], '', -ARGV[2]) == 0 then
  redis.call('HDEL', KEYS[1], '')
end
return 1
