-- Ask the fence of a write what is to be done for a batch, and give it a manifest if it has none.
--
-- KEYS  1 the fence: a hash of batch, state ('open' or 'done') and manifest
-- ARGV  1 the batch   2 the manifest, or '' to ask only   3 how long the fence lives, in milliseconds
-- Returns {'done'}, {'open', the manifest that counts}, or {'none'}
--
-- Atomic because of two drivers that come with a manifest each, only one may win.

local known = redis.call('HMGET', KEYS[1], 'batch', 'state', 'manifest')
local batch, last, state = tonumber(ARGV[1]), tonumber(known[1] or -1), known[2]
if state == 'open' and last <= batch then return {'open', known[3]} end
if last >= batch then return {'done'} end
if ARGV[2] == '' then return {'none'} end
redis.call('HSET', KEYS[1], 'batch', ARGV[1], 'state', 'open', 'manifest', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'open', ARGV[2]}
