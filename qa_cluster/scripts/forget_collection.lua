-- Takes a collection whose documents are removed from the list of a partition, with the traces of its changes.
-- KEYS: list of collections, index, epoch, flight. ARGV: name.
-- Reply: 1 if it is in the list no more or was made again meanwhile, 0 if there still are documents in its index.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= 'deleting' then
  return 1
end
-- The first value is the number of documents. An index without any may still have one that a worker did not finish.
if redis.call('EXISTS', KEYS[2]) == 1 and redis.call('QA.INDEX.INFO', KEYS[2])[2] > 0 then
  return 0
end
redis.call('UNLINK', KEYS[2], KEYS[3])
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
