-- The keys of one queue. Every script of a queue is given all of them, in this order.
local STREAMS = {c = KEYS[1], h = KEYS[2], d = KEYS[3], l = KEYS[4]} -- by priority: waiting and reserved jobs
local INDEX = KEYS[5] -- hash: job id → where it is: level and entry id, 'z' (delayed), 'x' and entry id (dead)
local STATE = KEYS[6] -- hash: 'paused'; how many were released, by level; 'at_' and level: see pause_14.lua
local DELAYED = KEYS[7] -- sorted set: job id by the millisecond at which it is due
local BODIES = KEYS[8] -- hash: job id → level and body of a delayed job; 'x' and body of an edited dead one
                       -- (the level in upper case: the body does not tell the id, see add)
local DEAD = KEYS[9] -- stream of dead letters
local UNIQUE = KEYS[10] -- hash: unique key → expiry in milliseconds (0: until the job is gone) and job id
local HOLDS = KEYS[11] -- hash: job id → the unique key that it holds until it is gone
local EXPIRING = KEYS[12] -- sorted set: unique keys that are held for a time, by their expiry
local BELL = KEYS[13] -- stream, read by the group: wakes one that waits in reserve
local DUE = KEYS[14] -- stream, read by everybody: a job is due earlier than was thought

local GROUP = 'workers'
-- Released jobs are pending for a consumer that nobody is. So they keep their place and their count.
local RELEASED = '~released'
local LEVELS = {'c', 'h', 'd', 'l'}

-- Add an entry. It has one field, the body, which usually tells the job's id; only where it does not (it may be
-- encrypted) the id is a second one: `level` in upper case says so.
local function add(level, job, body)
  local lower = string.lower(level)
  if lower == level then return lower .. redis.call('XADD', STREAMS[lower], '*', 'job', body) end
  return lower .. redis.call('XADD', STREAMS[lower], '*', 'job', body, 'id', job)
end

-- The server's clock, in milliseconds.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Numbers above 2^46 would be written as 1.7e+14 by Lua.
local function digits(number)
  return string.format('%.0f', number)
end
