-- Everything that is known of a stream's groups.
--
-- KEYS  1 the stream
-- Returns {{seconds, microseconds}, {length, entries ever added, first id or '', last id or ''},
--          {name, last-delivered-id, pending, lag or false, {{name, pending, idle}, …}} of each group}
--
-- Atomic so that the numbers fit together.
--@include _info

local key = KEYS[1]
local stream = by_name(redis.call('XINFO', 'STREAM', key))
local first, last = stream['first-entry'], stream['last-entry']
local groups = {}
for i, group in ipairs(groups_of(key)) do
  local consumers = {}
  for j, member in ipairs(redis.call('XINFO', 'CONSUMERS', key, group['name'])) do
    local consumer = by_name(member)
    consumers[j] = {consumer['name'], consumer['pending'], consumer['idle']}
  end
  groups[i] = {group['name'], group['last-delivered-id'], group['pending'], group['lag'] or false, consumers}
end
return {
  redis.call('TIME'),
  {stream['length'], stream['entries-added'], first and first[1] or '', last and last[1] or ''},
  groups,
}
