-- How far the group has read a stream; everything above it was delivered to nobody yet.
-- Needs _queue. A paused queue's true position is in its state. nil where there is no stream or no group.
local function position(level)
  local kept = redis.call('HGET', STATE, 'at_' .. level)
  if kept then return kept end
  local groups = redis.pcall('XINFO', 'GROUPS', STREAMS[level])
  for _, group in ipairs(groups) do
    local fields = {}
    for i = 1, #group, 2 do fields[group[i]] = group[i + 1] end
    if fields['name'] == GROUP then return fields['last-delivered-id'] end
  end
  return nil
end
