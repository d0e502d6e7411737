-- Makes a stored reader the default one of its shard; the one that was keeps its name and stays.
-- KEYS: model, manifest and tokenizer of the default; those of the reader; those of where the former default goes, if there is one.
-- ARGV: the manifest of the default as the caller has seen it, empty for none.
-- Reply: done, changed (the default is another one now), missing (the reader is not whole).
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
