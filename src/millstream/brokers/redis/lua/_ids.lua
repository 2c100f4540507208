-- Entry ids in Lua. An id is a pair of unsigned 64-bit numbers, and a Lua number holds 53 bits, so ids
-- stay texts here: without leading zeros, the longer text is the greater number.

local function number_less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local function id_less(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then return number_less(a_ms, b_ms) end
  return number_less(a_seq, b_seq)
end

local function increment(digits)
  local nines = string.match(digits, '9*$')
  local head = string.sub(digits, 1, #digits - #nines)
  if head == '' then return '1' .. string.rep('0', #nines) end
  return string.sub(head, 1, -2) .. (tonumber(string.sub(head, -1)) + 1) .. string.rep('0', #nines)
end

-- The id right after this one; the last possible id stays as it is.
local function next_id(id)
  local most = '18446744073709551615'
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  if seq ~= most then return ms .. '-' .. increment(seq) end
  if ms ~= most then return increment(ms) .. '-0' end
  return id
end
