-- Drops cached answers of one partition, and every mention of them.
-- KEYS: kept, kept bytes, flight, then the answers. There are at most some hundreds of them.
-- Reply: how many values there were.
local KEPT = KEYS[1]
local names, removed = {}, 0
for i = 4, #KEYS do
  local document = KEYS[i]:match('^bertqa[^{]*{[^}]+}_([^{}]*:{[^}]+}):')
  if document then
    redis.call('SREM', 'answers:' .. document, KEYS[i])
  end
  removed = removed + redis.call('UNLINK', KEYS[i])
  names[#names + 1] = KEYS[i]
end
forget_kept(KEPT:match('{[^{}]+}$'), names)
return removed
