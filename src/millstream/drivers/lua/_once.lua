-- A call whose reply was lost is repeated with its old number, and gets its old answer. The key is the
-- caller's alone, and a caller makes one call at a time, so that the last answer is enough.
local function recall(key, number)
  local known = redis.call('GET', key)
  if known and string.sub(known, 1, #number + 1) == number .. ' ' then
    return string.sub(known, #number + 2)
  end
  return nil
end

-- After everything else is done: then a server that is out of memory does not refuse it any more. Where
-- nothing was done it may be refused, and a repetition does nothing again.
local function remember(key, number, ttl, answer)
  redis.pcall('SET', key, number .. ' ' .. answer, 'PX', ttl)
end
