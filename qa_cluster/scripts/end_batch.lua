-- Ends a batch and makes its output and error files visible. A call without a token cancels the batch: if a worker runs
-- the owner's batches, this worker will end the batch; otherwise, the batch ends at once.
-- KEYS: lease, record of the batch, open batches, files of the owner, records of output and error file, sizes of the
-- owner's files.
-- ARGV: token of the worker or '', id of the batch, status at the end, now (s), now (µs), errors (JSON) or ''.
-- Reply: {1, status}: the batch has ended, or a worker will end it (status `cancelling`). {0, status}: the batch had
-- already ended. {-1, ''}: the worker has no lease, or the batch is missing.
local status = redis.call('HGET', KEYS[2], 'status')
if not status then
  return {-1, ''}
end
local lease = redis.call('GET', KEYS[1])
if ARGV[1] ~= '' and lease ~= ARGV[1] then
  return {-1, ''}
end
if status ~= 'validating' and status ~= 'in_progress' and status ~= 'cancelling' then
  return {0, status}
end
if ARGV[1] == '' and lease then
  if status ~= 'cancelling' then
    redis.call('HSET', KEYS[2], 'status', 'cancelling', 'cancelling_at', ARGV[4])
  end
  return {1, 'cancelling'}
end
local found = redis.call('HMGET', KEYS[2], 'output_file', 'output_bytes', 'output_parts', 'error_file', 'error_bytes',
                         'error_parts', 'keep_until')
local names = {'output', 'error'}
for index, name in ipairs(names) do
  local file, bytes, parts = found[index * 3 - 2], found[index * 3 - 1], found[index * 3]
  if tonumber(bytes) > 0 then
    redis.call('HSET', KEYS[4 + index], 'bytes', bytes, 'parts', parts, 'created_at', ARGV[4], 'expires_at', found[7],
               'filename', ARGV[2] .. '_' .. name .. '.jsonl', 'purpose', 'batch_output')
    redis.call('ZADD', KEYS[4], ARGV[5], file)
    redis.call('HSET', KEYS[7], file, bytes .. ':' .. found[7])
    redis.call('HSET', KEYS[2], name .. '_file_id', file)
  else
    redis.call('HDEL', KEYS[7], file)
  end
end
redis.call('HSET', KEYS[2], 'status', ARGV[3], ARGV[3] .. '_at', ARGV[4])
if ARGV[3] == 'completed' then
  redis.call('HSET', KEYS[2], 'finalizing_at', ARGV[4])
end
if ARGV[3] == 'cancelled' and ARGV[1] == '' then
  redis.call('HSETNX', KEYS[2], 'cancelling_at', ARGV[4])
end
if ARGV[6] ~= '' then
  redis.call('HSET', KEYS[2], 'errors', ARGV[6])
end
redis.call('ZREM', KEYS[3], ARGV[2])
return {1, ARGV[3]}
