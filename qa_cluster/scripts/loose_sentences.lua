-- Sentences that a client keeps without a document have changed: their answers go. Reply: 1, or 0 if there is a document.
if redis.call('EXISTS', DOCUMENT) == 1 then
  return 0
end
drop_answers()
return 1
