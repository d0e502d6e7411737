-- Removes a collection from the list of a partition, with its index and its epoch, after its documents were removed.
-- KEYS: list of collections, index, epoch, flight.
-- `flight` is a key that never exists. Because of it, the server refuses the script while the slot migrates.
-- ARGV: name of the collection.
-- Reply: 1 if the collection is no longer in the list or was created again, 0 if its index still has documents.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= 'deleting' then
  return 1
end
-- The first value is the number of documents. An index with 0 documents may still have an open document that a worker
-- has not committed.
if redis.call('EXISTS', KEYS[2]) == 1 and redis.call('QA.INDEX.INFO', KEYS[2])[2] > 0 then
  return 0
end
redis.call('UNLINK', KEYS[2], KEYS[3])
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
