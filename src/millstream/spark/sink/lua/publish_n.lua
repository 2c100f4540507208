-- Move one block of entries from a stage to its streams.
--
-- KEYS  1 the stage   2 the names of its blocks' streams, or the stage again   3… the streams of the first block
-- ARGV  1 how many values the stage has, as the caller believes
-- Returns {how many it has now, how many entries were added}
--
-- Atomic so that an entry is either staged or published. Where the caller is mistaken about the length, because
-- its last reply was lost or somebody else publishes as well, nothing is done but to tell it.
--
-- A script is not rolled back: that each key is a stream is tried before the first addition, the first addition
-- is the only write that a server without memory refuses, and the block goes last.

local call, stage, names = redis.call, KEYS[1], KEYS[2]
local length = call('LLEN', stage)
if length ~= tonumber(ARGV[1]) or length < 2 then return {length, 0} end
for i = 3, #KEYS do call('XLEN', KEYS[i]) end
local block = cmsgpack.unpack(call('LINDEX', stage, 0))
local added
if block[1] == 'p' then
  local stream = KEYS[3]
  added = #block - 1
  for i = 2, #block do call('XADD', stream, '*', 'data', block[i]) end
else
  added = (#block - 1) / 4
  for i = 2, #block, 4 do
    local stream, data, type, headers = KEYS[2 + tonumber(block[i])], block[i + 1], block[i + 2], block[i + 3]
    if headers == '' then
      if type == '' then
        call('XADD', stream, '*', 'data', data)
      else
        call('XADD', stream, '*', 'data', data, 'type', type)
      end
    elseif type == '' then
      call('XADD', stream, '*', 'data', data, 'headers', headers)
    else
      call('XADD', stream, '*', 'data', data, 'type', type, 'headers', headers)
    end
  end
end
call('LPOP', stage)
if names ~= stage then call('LPOP', names) end
return {length - 1, added}
