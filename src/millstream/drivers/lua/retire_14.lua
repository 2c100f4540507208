-- Remove the consumers of a worker that hold nothing.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- ARGV  1 the worker's id: its consumers have this name, or one that begins with it and a colon
-- Returns how many consumers were removed
--
-- Atomic because XGROUP DELCONSUMER drops what a consumer holds for good: a job that was delivered between the
-- look and the removal would be lost.
--@include _queue

local removed = 0
for _, key in ipairs({KEYS[1], KEYS[2], KEYS[3], KEYS[4], BELL}) do
  for _, item in ipairs(redis.pcall('XINFO', 'CONSUMERS', key, GROUP)) do
    local fields = {}
    for i = 1, #item, 2 do fields[item[i]] = item[i + 1] end
    local name = fields['name']
    local its = name == ARGV[1] or string.sub(name, 1, #ARGV[1] + 1) == ARGV[1] .. ':'
    if its and (key == BELL or fields['pending'] == 0) then
      redis.call('XGROUP', 'DELCONSUMER', key, GROUP, name)
      removed = removed + 1
    end
  end
end
return removed
