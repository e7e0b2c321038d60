--#
-- {job, until_ms, lease_ms}... of the live claims.
local err = wrong('mj:leases', 'zset')
if err then return err end
local found = {}
local listed = redis.call('ZRANGE', 'mj:leases', 0, -1, 'WITHSCORES')
for i = 1, #listed, 2 do
  local key = 'mj:claim:' .. listed[i]
  local lease_ms = type_of(key) == 'hash' and redis.call('HGET', key, 'lease_ms')
  found[#found + 1] = {listed[i], listed[i + 1], lease_ms or '0'}
end
return found
