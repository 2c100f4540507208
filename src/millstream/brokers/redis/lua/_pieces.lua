-- XRANGE hands whole entries to the script. How many to ask for next, so that one piece stays near
-- half a megabyte whatever the entries weigh: a fixed number would be slow for small ones and could
-- take a gigabyte for large ones.
local function next_piece(piece, entries)
  local bytes = 0
  for _, entry in ipairs(entries) do
    for _, text in ipairs(entry[2]) do bytes = bytes + #text end
  end
  if bytes > 524288 then return math.max(1, math.floor(piece / 2)) end
  if bytes < 131072 then return math.min(512, piece * 2) end
  return piece
end
