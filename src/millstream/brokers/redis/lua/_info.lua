-- XINFO answers a script with a flat list of names and values.
local function by_name(list)
  local found = {}
  for i = 1, #list, 2 do found[list[i]] = list[i + 1] end
  return found
end
