-- Take over jobs whose lease has ended.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- ARGV  1 the owner   2 the lease in milliseconds   3 how many   4 how many pending entries to look at per stream
--       5–8 where to go on in each stream: an id that was looked at last, or '' for the beginning
-- Returns {parts, cursors}: parts is {level, jobs, named, counts} as in reserve_n.lua; cursors are for the next call
--
-- Atomic so that one of several that look at the same time takes each job, and that the counts belong to it.
--@include _queue
--@include _flat

local owner, lease, most, page = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local parts, cursors = {}, {}
for i, level in ipairs(LEVELS) do
  local cursor = ARGV[4 + i]
  local rows = {}
  if most > 0 then
    rows = redis.pcall('XPENDING', STREAMS[level], GROUP, cursor == '' and '-' or '(' .. cursor, '+', page)
    if rows['err'] then rows = {} end
    if #rows < page then cursor = '' end
  end
  local ids, count_of = {}, {}
  for _, row in ipairs(rows) do
    if #ids == most then break end
    if #rows == page or cursor ~= '' then cursor = row[1] end
    if row[3] >= lease and row[2] ~= RELEASED then
      ids[#ids + 1] = row[1]
      count_of[row[1]] = row[4] + 1
    end
  end
  if #ids == most and #rows > 0 and most > 0 then cursor = ids[#ids] end
  if #ids > 0 then
    -- XCLAIM drops pending ids whose entry is gone.
    local entries, counts = redis.call('XCLAIM', STREAMS[level], GROUP, owner, lease, unpack(ids)), {}
    for j, entry in ipairs(entries) do counts[j] = count_of[entry[1]] end
    if #entries > 0 then
      local jobs, named = flat(entries)
      parts[#parts + 1] = {i, jobs, named, counts}
    end
    most = most - #entries
  end
  cursors[i] = cursor
end
return {parts, cursors}
