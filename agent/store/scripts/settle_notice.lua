--# journal
-- After a try: the entry as it is tried again, or '' and, if it is given up, what the anomalies say of it.
local entry, again, after_ms, given_up, of = arg(), arg(), num(arg()), arg(), arg()
local err = wrong('mj:notices', 'zset')
if err then return err end
if not redis.call('ZSCORE', 'mj:notices', entry) then return 0 end  -- whoever had it meanwhile has settled it
if again ~= '' then redis.call('ZADD', 'mj:notices', dec(now_ms + after_ms), again) end
if given_up ~= '' then add_anomaly(given_up) end
if again == '' then redis.pcall('HDEL', mark_of(of), 'noticed') end
if again == entry and entry ~= '' then return 1 end  -- it stays as it is
return redis.call('ZREM', 'mj:notices', entry)
