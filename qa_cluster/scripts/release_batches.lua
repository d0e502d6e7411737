-- Ends the lease of a worker for the batches of an owner.
-- KEYS: lease.
-- ARGV: token of the worker.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
