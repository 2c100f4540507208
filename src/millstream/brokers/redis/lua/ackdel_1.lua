-- Acknowledge entries, and delete those that no other group needs. For servers without XACKDEL.
--
-- KEYS  1 the stream
-- ARGV  1 the group   2… ids, a thousand at the most
-- Returns how many were deleted
--
-- Atomic because between the look at the other groups and the deletion one of them could be given
-- the entry.
--@include _ids
--@include _info

local key, group = KEYS[1], ARGV[1]
local others = {}
for _, other in ipairs(groups_of(key)) do
  if other['name'] ~= group then others[#others + 1] = other end
end

local function needed(id)
  for _, other in ipairs(others) do
    if id_less(other['last-delivered-id'], id) then return true end
    if other['pending'] > 0 and #redis.call('XPENDING', key, other['name'], id, id, 1) > 0 then return true end
  end
  return false
end

local free = {}
for i = 2, #ARGV do
  if redis.call('XACK', key, group, ARGV[i]) == 1 and not needed(ARGV[i]) then
    free[#free + 1] = ARGV[i]
  end
end
if #free == 0 then return 0 end
return redis.call('XDEL', key, unpack(free))
