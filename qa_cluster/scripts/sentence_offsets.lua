-- Shared by all scripts that read sentences. KEYS[1] is the text, KEYS[2] the packed sentence offsets
-- (`documents/sentence_offsets.py`).

-- Returns the width of a record in bytes, and the number of records; 0 and 0 if the offsets are missing.
local function offsets()
  local bytes = redis.call('STRLEN', KEYS[2])
  if bytes == 0 then
    return 0, 0
  end
  local width = redis.call('GETRANGE', KEYS[2], 0, 0):byte()
  return width, math.floor((bytes - 1) / width)
end

-- Returns the records of the sentences `first` to `last` (inclusive, from 0), and the text from the start of the first
-- to the end of the last sentence. `width` is the width of a record from `offsets`.
local function sentences_between(width, first, last)
  local found = redis.call('GETRANGE', KEYS[2], 1 + first * width, (last + 1) * width)
  local ending = #found - width + 1
  local from, to
  if width == 14 then
    from = struct.unpack('<I4', found, 9)
    local at, size = struct.unpack('<I4I2', found, ending + 8)
    to = at + size
  else
    from = struct.unpack('<I4', found)
    local at, size = struct.unpack('<I4I2', found, ending)
    to = at + size
  end
  return found, redis.call('GETRANGE', KEYS[1], from, to - 1)
end
