-- Records the results of the next lines of a batch in one step, and renews the lease of the worker.
-- KEYS: lease, record of the batch, sizes of the owner's files, then the parts to which the texts are appended.
-- ARGV: token of the worker, duration of the lease (ms), lines done before, lines done now, size limit of all files of
-- the owner together, time until which the results are kept, ids of output and error file, their new sizes, number of
-- arguments with fields of the record, these fields, one text for each part.
-- Reply: {1, lines done, status}: this call or an earlier call has recorded the lines, or the status of the batch
-- allows no record. {0, lines done, status}: the number of done lines is neither of the given numbers. {-1, 0, ''}:
-- another worker has the lease, or the batch is missing. {-2, sum, status}: the files would exceed the size limit.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {-1, 0, ''}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local record = redis.call('HMGET', KEYS[2], 'done', 'status')
if not record[1] then
  return {-1, 0, ''}
end
local done, status = tonumber(record[1]), record[2]
local before, now = tonumber(ARGV[3]), tonumber(ARGV[4])
if done ~= before then
  return {done == now and 1 or 0, done, status}
end
-- A batch that is being cancelled accepts only the results of lines that have run.
if status ~= 'validating' and status ~= 'in_progress' and not (status == 'cancelling' and now > before) then
  return {1, done, status}
end
local fields = tonumber(ARGV[11])
if now > before then
  local total = tonumber(ARGV[9]) + tonumber(ARGV[10])
  local found = redis.call('HGETALL', KEYS[3])
  for at = 1, #found, 2 do
    if found[at] ~= ARGV[7] and found[at] ~= ARGV[8] then
      total = total + tonumber(string.match(found[at + 1], '^(%d+)') or '0')
    end
  end
  if total > tonumber(ARGV[5]) then
    return {-2, total, status}
  end
  for at = 4, #KEYS do
    redis.call('APPEND', KEYS[at], ARGV[11 + fields + at - 3])
  end
  redis.call('HSET', KEYS[3], ARGV[7], ARGV[9] .. ':' .. ARGV[6], ARGV[8], ARGV[10] .. ':' .. ARGV[6])
end
if fields > 0 then
  redis.call('HSET', KEYS[2], unpack(ARGV, 12, 11 + fields))
end
redis.call('HSET', KEYS[2], 'done', ARGV[4])
return {1, now, redis.call('HGET', KEYS[2], 'status')}
