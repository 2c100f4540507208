-- Begin leases anew.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- ARGV  sections: level, owner, delivery count, how many, the entry ids
-- Returns a letter for each in order: 1 where the caller owns it, 0 where not
--
-- Atomic so that nobody takes a job over between the look at its owner and the claim. JUSTID keeps the count.
--@include _queue
--@include _owned

local answers, at = {}, 1
while at <= #ARGV do
  local stream, owner, deliveries, n = STREAMS[ARGV[at]], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local ids, kept = {}, {}
  for i = 1, n do ids[i] = ARGV[at + 3 + i] end
  local mine = owned(stream, owner, deliveries, ids)
  for i, id in ipairs(ids) do
    answers[#answers + 1] = mine[id] and '1' or '0'
    if mine[id] then kept[#kept + 1] = id end
  end
  if #kept > 0 then
    local claim = {'XCLAIM', stream, GROUP, owner, 0}
    for _, id in ipairs(kept) do claim[#claim + 1] = id end
    claim[#claim + 1] = 'JUSTID'
    redis.call(unpack(claim))
  end
  at = at + 4 + n
end
return table.concat(answers)
