-- Entries with their delivery counts: {id, fields, count} each. XCLAIM, XAUTOCLAIM and XREADGROUP do not
-- tell the count, and asking for it in a second call could answer with somebody else's claim.
-- Entries that no longer exist are left out.
local function with_counts(key, group, entries)
  local counted = {}
  for _, entry in ipairs(entries) do
    if entry and entry[2] then
      local pending = redis.call('XPENDING', key, group, entry[1], entry[1], 1)
      counted[#counted + 1] = {entry[1], entry[2], pending[1] and pending[1][4] or 1}
    end
  end
  return counted
end
