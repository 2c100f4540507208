#!lua flags=no-writes
-- How far a number of entries, and a number of bytes, reach in a range: one bounded step.
--
-- KEYS  1 the stream
-- ARGV  1 from   2 to   3 how many entries   4 how many bytes of values, -1 for any
--       5 whether the first entry counts even if it has more bytes
-- Returns {how many were found, their bytes, the id of the last one, 1 at the end of the range}
--
-- A script because XRANGE would send the entries themselves. Pieces are small, so that large entries do not
-- fill the memory of the server.

local key, from, to, most, room = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local found, size, last, piece = 0, 0, '', 16
while found < most do
  local want = math.min(piece, most - found)
  local entries = redis.call('XRANGE', key, from, to, 'COUNT', want)
  local piece_size = 0
  for _, entry in ipairs(entries) do
    local weight = 0
    for place = 2, #entry[2], 2 do weight = weight + #entry[2][place] end
    if room >= 0 and size + weight > room and not (found == 0 and ARGV[5] == '1') then
      return {found, size, last, 0}
    end
    found, size, last, piece_size = found + 1, size + weight, entry[1], piece_size + weight
  end
  if #entries < want then return {found, size, last, 1} end
  from = '(' .. last
  if piece_size < 65536 then piece = math.min(piece * 2, 512) else piece = math.max(math.floor(piece / 2), 1) end
end
return {found, size, last, 0}
