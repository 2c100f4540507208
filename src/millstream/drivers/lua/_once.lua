-- A call whose reply was lost is repeated with its old number, and gets its old answer. The key is the
-- caller's alone, and a caller makes one call at a time, so that the last answer is enough.

-- The answer to the call `number`, where the note `last` tells it. A call that arrives after a later one of its
-- caller was answered is a copy that was long on its way: nobody waits for it any more, and it must do nothing.
local function answered(last, number)
  local space = string.find(last, ' ', 1, true)
  local noted = string.sub(last, 1, space - 1)
  if noted == number then return string.sub(last, space + 1) end
  if tonumber(noted) > tonumber(number) then
    return redis.error_reply('STALE a later call of this caller was answered')
  end
  return nil
end

local function recall(key, number)
  local last = redis.call('GET', key)
  return last and answered(last, number)
end

-- After everything else is done: then a server that is out of memory does not refuse it any more. Where
-- nothing was done it may be refused, and a repetition does nothing again.
local function remember(key, number, ttl, answer)
  redis.pcall('SET', key, number .. ' ' .. answer, 'PX', ttl)
end
