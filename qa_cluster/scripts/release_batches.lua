-- Ends the lease of a worker for the batches of an owner. If another worker has the lease, the lease stays.
-- KEYS: lease.
-- ARGV: token of the worker.
-- Reply: 1.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
