-- Sentences that a client stores without a document have changed: deletes their answers. Reply: 1, or 0 if there is a
-- document.
if redis.call('EXISTS', DOCUMENT) == 1 then
  return 0
end
drop_answers()
return 1
