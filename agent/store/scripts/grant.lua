--#
-- The server was started since we last saw it: each live claim gets a whole lease. Never shortens one.
local run_id = arg()
local err = wrong('mj:server', 'string') or wrong('mj:leases', 'zset')
if err then return err end
if redis.call('GET', 'mj:server') == run_id then return 0 end
local granted = 0
redis.call('SET', 'mj:server', run_id)
for _, job in ipairs(redis.call('ZRANGE', 'mj:leases', 0, -1)) do
  local claim = read_claim(job)
  if claim and claim.state == 'live' then
    local until_ms = dec(math.max(num(claim.until_ms), now_ms + num(claim.lease_ms)))
    redis.call('HSET', 'mj:claim:' .. job, 'until_ms', until_ms)
    redis.call('ZADD', 'mj:leases', until_ms, job)
    if type_of(job) == 'hash' then redis.call('HSET', job, 'lease_until_ms', until_ms) end
    granted = granted + 1
  end
end
return granted
