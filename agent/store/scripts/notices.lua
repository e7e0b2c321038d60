-- Notices of ends.

--# notices_due:
-- {entries whose time has come, ms until the next one or 0}: each is given out once in hold_ms.
local max, hold_ms = num(arg()), num(arg())
local err = wrong('mj:notices', 'zset')
if err then return err end
local due = redis.call('ZRANGEBYSCORE', 'mj:notices', '-inf', dec(now_ms), 'LIMIT', 0, max)
for _, entry in ipairs(due) do redis.call('ZADD', 'mj:notices', dec(now_ms + hold_ms), entry) end
local next_due = redis.call('ZRANGE', 'mj:notices', 0, 0, 'WITHSCORES')[2]
return {due, next_due and dec(math.max(1, num(next_due) - now_ms)) or '0'}

--# settle_notice: journal
-- After a try: the entry as it is tried again, or '' and, if it is given up, what the anomalies say of it.
local entry, again, after_ms, given_up, of = arg(), arg(), num(arg()), arg(), arg()
local err = wrong('mj:notices', 'zset')
if err then return err end
if not redis.call('ZSCORE', 'mj:notices', entry) then return 0 end  -- whoever had it meanwhile has settled it
if again ~= '' then redis.call('ZADD', 'mj:notices', dec(now_ms + after_ms), again) end
if given_up ~= '' then add_anomaly(given_up) end
if again == '' then call_index('HDEL', mark_of(of), 'noticed') end
if again == entry and entry ~= '' then return 1 end  -- it stays as it is
return redis.call('ZREM', 'mj:notices', entry)
