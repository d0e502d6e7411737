-- Deletes cached sentence answers or whole answers of one partition, and their entries in the lists.
-- KEYS: list of the partition's sentence answers, sum of their sizes, flight, then at most some hundred answers.
-- `flight` is a key that never exists. Because of it, the server refuses the script while the slot migrates.
-- Reply: number of deleted answers.
local TAG = KEYS[1]:match('{[^{}]+}$')
local names, whole, removed = {}, {}, 0
for i = 4, #KEYS do
  local document = KEYS[i]:match('^bertqa[^{]*{[^}]+}_([^{}]*:{[^}]+}):')
  if document then
    redis.call('SREM', 'answers:' .. document, KEYS[i])
  end
  removed = removed + redis.call('UNLINK', KEYS[i])
  local list = KEYS[i]:match('^answer:') and whole or names
  list[#list + 1] = KEYS[i]
end
unlist_sentence_answers(TAG, names)
unlist('kept-whole:' .. TAG, 'kept-whole-bytes:' .. TAG, whole)
return removed
