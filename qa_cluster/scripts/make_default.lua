-- Makes a stored reader the default reader of its shard. The former default reader keeps its name.
-- KEYS: model, manifest and tokenizer of the default reader; the same keys of the stored reader; the same keys under
-- the name of the former default reader, if there is one.
-- ARGV: the manifest of the default as the caller has read it, empty if it is missing.
-- Reply: done, changed (the manifest of the default is not the given manifest), missing (the reader is incomplete).
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[1] then
  return 'changed'
end
for i = 4, 6 do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    return 'missing'
  end
end
for i = 7, #KEYS do
  if redis.call('EXISTS', KEYS[i - 6]) == 1 then
    redis.call('RENAME', KEYS[i - 6], KEYS[i])
  end
end
for i = 1, 3 do
  redis.call('RENAME', KEYS[i + 3], KEYS[i])
end
return 'done'
