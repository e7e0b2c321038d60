-- Delivery of notices about the ends of jobs and flows. The scripts have no KEYS, and fail with MJTYPE if mj:notices
-- has a wrong type.

--# notices_due:
-- Returns the due notices. Each notice is postponed by hold_ms, so that another coordinator does not deliver it, too.
-- ARGV: max, hold_ms.
-- Reply: {{entries...}, ms until the next entry, or 0}.
-- Repeat: safe; postponed notices become due again.
local max, hold_ms = to_number(next_arg()), to_number(next_arg())
local err = check_type('mj:notices', 'zset')
if err then return err end
local due = redis.call('ZRANGEBYSCORE', 'mj:notices', '-inf', to_integer_text(now_ms), 'LIMIT', 0, max)
for _, entry in ipairs(due) do redis.call('ZADD', 'mj:notices', to_integer_text(now_ms + hold_ms), entry) end
local next_due = redis.call('ZRANGE', 'mj:notices', 0, 0, 'WITHSCORES')[2]
return {due, next_due and to_integer_text(math.max(1, to_number(next_due) - now_ms)) or '0'}

--# settle_notice: dispatch_journal
-- Stores the result of a delivery: the notice is tried again, is delivered, or has failed for good.
-- ARGV: entry, retry_entry (the changed entry for the next attempt, or empty), after_ms (pause before that attempt),
-- failure_text (of the anomaly for a permanent failure, or empty), record_key (of the job or flow).
-- Reply: 1 if the same entry remains or the entry was removed; otherwise 0.
-- Repeat: safe; the reply is 0 if the entry was removed before.
local entry, retry_entry, after_ms, failure_text, record_key = next_arg(), next_arg(), to_number(next_arg()), next_arg(), next_arg()
local err = check_type('mj:notices', 'zset')
if err then return err end
if not redis.call('ZSCORE', 'mj:notices', entry) then return 0 end  -- another coordinator has stored a result in the meantime
if retry_entry ~= '' then redis.call('ZADD', 'mj:notices', to_integer_text(now_ms + after_ms), retry_entry) end
if failure_text ~= '' then add_anomaly(failure_text) end
if retry_entry == '' then call_index('HDEL', state_key(record_key), 'noticed') end
if retry_entry == entry and entry ~= '' then return 1 end
return redis.call('ZREM', 'mj:notices', entry)
