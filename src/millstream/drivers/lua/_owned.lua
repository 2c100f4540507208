-- The fence: which of these entries are still pending for this owner, in this delivery.
-- Needs _queue. One range of XPENDING usually answers for all of them, because they were read together.
-- Returns a set of entry ids.
local function owned(key, owner, deliveries, ids)
  local mine, seen = {}, {}
  local i, n = 1, #ids
  while i <= n do
    local reply = redis.pcall('XPENDING', key, GROUP, ids[i], '+', n - i + 1, owner)
    if reply['err'] then
      if string.find(reply['err'], 'NOGROUP', 1, true) then return mine end
      error(reply)
    end
    for _, row in ipairs(reply) do
      seen[row[1]] = true
      if row[4] == deliveries then mine[row[1]] = true end
    end
    -- What the range began with is not in it: then it is not pending for this owner.
    seen[ids[i]] = true
    while i <= n and seen[ids[i]] do i = i + 1 end
  end
  return mine
end
