-- Deletes the answers of changed sentences that a client stores without a document.
-- Reply: 1 if the answers were deleted, or 0 if a document exists.
if redis.call('EXISTS', DOCUMENT) == 1 then
  return 0
end
drop_answers()
return 1
