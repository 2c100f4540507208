-- Make jobs waiting, or delayed, as the call `number` of a line of calls that outlives its callers.
--
-- KEYS  1–14 the queue's, see _queue.lua   15 the last number of the line
-- ARGV  as for push_15.lua; with no job at all only the number is noted
-- Returns 'old' where this number or a later one was noted before: then nothing is changed; else what
-- push_15.lua returns
--
-- Atomic so that the number is noted exactly if the jobs were added: whoever goes on after a crash may repeat
-- the call at any time, also when its jobs have long been done.
local noted = redis.call('GET', KEYS[15])
if noted and tonumber(string.match(noted, '^%d+')) >= tonumber(ARGV[1]) then return 'old' end
if ARGV[3] == '' then
  redis.call('SET', KEYS[15], ARGV[1] .. ' ', 'PX', ARGV[2])
  return ''
end
--@include push_15
