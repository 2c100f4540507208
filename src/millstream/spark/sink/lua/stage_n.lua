-- Put blocks at the end of a stage.
--
-- KEYS  1 the stage   2 the names of each block's streams, where they are kept
-- ARGV  1 how many blocks the stage has so far   2 how long it lives, in milliseconds   3 how many are added
--       4… the blocks, then the names of each
-- Returns how many it has now
--
-- The count makes a repetition after a lost reply harmless: then it is another one, and nothing is added.

local call, stage, n = redis.call, KEYS[1], tonumber(ARGV[3])
local length = call('LLEN', stage)
if length ~= tonumber(ARGV[1]) then return length end
call('RPUSH', stage, unpack(ARGV, 4, 3 + n))
call('PEXPIRE', stage, ARGV[2])
if KEYS[2] then
  call('RPUSH', KEYS[2], unpack(ARGV, 4 + n, 3 + 2 * n))
  call('PEXPIRE', KEYS[2], ARGV[2])
end
return length + n
