--#
-- {entries whose time has come, ms until the next one or 0}: each is given out once in hold_ms.
local max, hold_ms = num(arg()), num(arg())
local err = wrong('mj:notices', 'zset')
if err then return err end
local due = redis.call('ZRANGEBYSCORE', 'mj:notices', '-inf', dec(now_ms), 'LIMIT', 0, max)
for _, entry in ipairs(due) do redis.call('ZADD', 'mj:notices', dec(now_ms + hold_ms), entry) end
local next_due = redis.call('ZRANGE', 'mj:notices', 0, 0, 'WITHSCORES')[2]
return {due, next_due and dec(math.max(1, num(next_due) - now_ms)) or '0'}
