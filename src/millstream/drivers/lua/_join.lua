-- Let the group exist in every stream of the queue, from the beginning of the stream.
-- Needs _queue. Returns how many had to be made.
local LAST_ID = '18446744073709551615-18446744073709551615'
local function join()
  local made = 0
  local paused = redis.call('HGET', STATE, 'paused')
  for _, level in ipairs({'c', 'h', 'd', 'l', 'bell'}) do
    local key = level == 'bell' and BELL or STREAMS[level]
    local reply = redis.pcall('XGROUP', 'CREATE', key, GROUP, '0', 'MKSTREAM')
    if not reply['err'] then
      made = made + 1
      if paused and level ~= 'bell' then
        redis.call('HSET', STATE, 'at_' .. level, '0-0')
        redis.call('XGROUP', 'SETID', key, GROUP, LAST_ID)
      end
    elseif not (string.find(reply['err'], 'BUSYGROUP', 1, true) or string.find(reply['err'], 'OOM', 1, true)) then
      -- A server that is out of memory refuses this even where the group exists, and a new worker is to drain it.
      error(reply)
    end
  end
  return made
end
