-- The rule that nothing needed is ever trimmed, in bounded steps.
--@include _ids
--@include _info
--@include _pieces

-- The smallest id that some group still needs: it was not acknowledged, or not delivered yet.
-- false where there is no group. XTRIM's own ACKED option (Redis 8.2) is not this rule: it skips needed
-- entries and removes newer ones, so that the rest is no longer a gapless tail.
local function needed_from(key)
  local floor = false
  for _, group in ipairs(groups_of(key)) do
    local needed = next_id(group['last-delivered-id'])
    if group['pending'] > 0 then
      local oldest = redis.call('XPENDING', key, group['name'])[2]
      if id_less(oldest, needed) then needed = oldest end
    end
    if not floor or id_less(needed, floor) then floor = needed end
  end
  return floor
end

-- One step. Returns how many went, whether a further step could remove more (1 or 0), and how many
-- were above the limit when it began.
local function safe_trim(key, mode, limit, floor)
  local length = redis.call('XLEN', key)
  if mode == 'MINID' then
    local cut = limit
    if floor and id_less(floor, cut) then cut = floor end
    -- Whole nodes first, which is cheap and can be limited; the exact rest is less than one node.
    local removed = redis.call('XTRIM', key, 'MINID', '~', cut, 'LIMIT', 10000)
    if removed > 0 then return removed, 1, length end
    return redis.call('XTRIM', key, 'MINID', '=', cut), 0, length
  end
  local excess = length - tonumber(limit)
  if excess <= 0 then return 0, 0, 0 end
  local all = excess
  if floor then
    local newest = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)
    if id_less(newest[1][1], floor) then floor = false end
  end
  if not floor then
    local step = math.min(excess, 10000)
    return redis.call('XTRIM', key, 'MAXLEN', '=', length - step), excess > step and 1 or 0, all
  end
  -- A stream has no rank, so the entries below the floor have to be looked at, piece by piece.
  local removed, piece = 0, 8
  while removed < 1000 and excess > 0 do
    local want = math.min(piece, excess, 1000 - removed)
    local entries = redis.call('XRANGE', key, '-', '(' .. floor, 'COUNT', want)
    if #entries > 0 then
      length = length - #entries
      redis.call('XTRIM', key, 'MAXLEN', '=', length)
      removed, excess = removed + #entries, excess - #entries
    end
    if #entries < want then return removed, 0, all end
    piece = next_piece(piece, entries)
  end
  return removed, excess > 0 and 1 or 0, all
end
