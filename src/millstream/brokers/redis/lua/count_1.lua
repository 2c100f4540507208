-- How many entries lie in a range, one bounded step.
--
-- KEYS  1 the stream
-- ARGV  1 from   2 to   3 how many to look at
-- Returns {how many were found, the last id looked at, or '' at the end of the range}
--
-- A script because XRANGE would send the entries themselves.
--@include _pieces

local key, from, to, most = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local found, piece = 0, 64
while found < most do
  local want = math.min(piece, most - found)
  local entries = redis.call('XRANGE', key, from, to, 'COUNT', want)
  found = found + #entries
  if #entries < want then return {found, ''} end
  from = '(' .. entries[#entries][1]
  piece = next_piece(piece, entries)
end
return {found, string.sub(from, 2)}
