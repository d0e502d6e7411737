-- What all scripts share that read sentences: KEYS[1] has the text, KEYS[2] the packed places (`reading/places.py`).

-- Bytes of a place, and how many places there are; no places: 0, 0.
local function places()
  local bytes = redis.call('STRLEN', KEYS[2])
  if bytes == 0 then
    return 0, 0
  end
  local width = redis.call('GETRANGE', KEYS[2], 0, 0):byte()
  return width, math.floor((bytes - 1) / width)
end

-- The places of some sentences, and the text from the first one's beginning to the last one's end.
local function stretch(width, first, last)
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
