--#
-- The server was started since somebody last saw it: each live claim gets a whole lease, never a shorter one. {claims, 1 if
-- it had data before that start and nobody has met it since, {queue, the revision that its journal had at the start, ...}}.
local run_id = arg()
local err = wrong('mj:server', 'string') or wrong('mj:leases', 'zset') or wrong('mj:heads', 'hash') or wrong('mj:queues', 'set')
if err then return err end
local before = redis.call('GET', 'mj:server')
if before == run_id then return {0, 0, redis.call('HGETALL', 'mj:heads')} end
local heads, granted = {}, 0
for _, queue in ipairs(redis.call('SMEMBERS', 'mj:queues')) do
  local key = 'mj:journal:' .. queue
  if type_of(key) == 'stream' then
    local info = to_table(redis.call('XINFO', 'STREAM', key))
    heads[#heads + 1] = queue
    heads[#heads + 1] = string.match(info['last-generated-id'], '^%d+')
  end
end
redis.call('DEL', 'mj:heads')
redis.call('SET', 'mj:server', run_id)
for i = 1, #heads, 2 do redis.call('HSET', 'mj:heads', heads[i], heads[i + 1]) end
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
return {granted, before and 1 or 0, heads}
