-- Delivery of notices about the ends of jobs and flows. The scripts have no KEYS, and fail with MJTYPE if mj:notices
-- has a wrong type.

--# notices_due:
-- Returns the due notices. Each one is postponed by hold_ms, so that another coordinator does not deliver it, too.
-- ARGV: max, hold_ms.
-- Reply: {{entries...}, ms until the next entry, or 0}.
-- Repeat: safe; postponed notices become due again.
local max, hold_ms = to_number(arg()), to_number(arg())
local err = check_type('mj:notices', 'zset')
if err then return err end
local due = redis.call('ZRANGEBYSCORE', 'mj:notices', '-inf', to_integer_text(now_ms), 'LIMIT', 0, max)
for _, entry in ipairs(due) do redis.call('ZADD', 'mj:notices', to_integer_text(now_ms + hold_ms), entry) end
local next_due = redis.call('ZRANGE', 'mj:notices', 0, 0, 'WITHSCORES')[2]
return {due, next_due and to_integer_text(math.max(1, to_number(next_due) - now_ms)) or '0'}

--# settle_notice: dispatch_journal
-- Stores the result of a delivery: the notice is tried again, is delivered, or has failed for good.
-- ARGV: entry, again (the changed entry for the next try, or empty), after_ms (pause before it), given_up (text of the
-- anomaly for a permanent failure, or empty), of (key of the job or flow).
-- Reply: 1 if the same entry remains or the entry was removed; otherwise 0.
-- Repeat: safe; the reply is 0 if the entry was removed before.
local entry, again, after_ms, given_up, of = arg(), arg(), to_number(arg()), arg(), arg()
local err = check_type('mj:notices', 'zset')
if err then return err end
if not redis.call('ZSCORE', 'mj:notices', entry) then return 0 end  -- another coordinator has stored a result in the meantime
if again ~= '' then redis.call('ZADD', 'mj:notices', to_integer_text(now_ms + after_ms), again) end
if given_up ~= '' then add_anomaly(given_up) end
if again == '' then call_index('HDEL', state_key(of), 'noticed') end
if again == entry and entry ~= '' then return 1 end
return redis.call('ZREM', 'mj:notices', entry)
