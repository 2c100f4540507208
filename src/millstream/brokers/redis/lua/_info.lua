-- XINFO answers a script with a flat list of names and values.
local function by_name(list)
  local found = {}
  for i = 1, #list, 2 do found[list[i]] = list[i + 1] end
  return found
end

-- The groups of a stream; none where there is no stream. Not by EXISTS, which a user who may use streams
-- need not have the right to.
local function groups_of(key)
  local reply = redis.pcall('XINFO', 'GROUPS', key)
  if reply['err'] then
    if string.find(reply['err'], 'no such key', 1, true) then return {} end
    error(reply)
  end
  local groups = {}
  for i, item in ipairs(reply) do groups[i] = by_name(item) end
  return groups
end
