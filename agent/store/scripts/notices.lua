-- Scripts for the delivery of notices about the ends of jobs and flows. A line "--# SCRIPT: PARTS" begins a script and
-- names the parts of lib/ that assemble.py adds to it. The scripts have no KEYS, and fail with MJTYPE if mj:notices has
-- a wrong type.

--# notices_due:
-- Returns the due notices, and postpones each by redelivery_delay_ms, so that another coordinator does not deliver the
-- same notice.
-- ARGV: max_entries, redelivery_delay_ms.
-- Reply: {{entries...}, ms until the next entry is due, or 0 if there is none}.
-- Repeat: safe; postponed notices become due again.
local max_entries, redelivery_delay_ms = to_number(next_arg()), to_number(next_arg())
local err = check_type(kNoticesKey, 'zset')
if err then return err end
local due = redis.call('ZRANGEBYSCORE', kNoticesKey, '-inf', to_integer_text(now_ms), 'LIMIT', 0, max_entries)
for _, entry in ipairs(due) do redis.call('ZADD', kNoticesKey, to_integer_text(now_ms + redelivery_delay_ms), entry) end
local next_due = redis.call('ZRANGE', kNoticesKey, 0, 0, 'WITHSCORES')[2]
return {due, next_due and to_integer_text(math.max(1, to_number(next_due) - now_ms)) or '0'}

--# settle_notice: dispatch_journal
-- Stores the result of a delivery: the notice is delivered, is to be retried, or has failed permanently.
-- ARGV: entry, retry_entry (the entry for the next attempt, or empty if there is none), retry_delay_ms (time until that
-- attempt), failure_text (text of the anomaly to record for a permanent failure, or empty), record_key (key of the job or
-- flow).
-- Reply: 1 if this call stored the result; 0 if the entry no longer exists, because another coordinator stored a result.
-- Repeat: safe; the reply is 0 if the entry was removed before.
local entry, retry_entry, retry_delay_ms, failure_text, record_key = next_arg(), next_arg(), to_number(next_arg()), next_arg(), next_arg()
local err = check_type(kNoticesKey, 'zset')
if err then return err end
if not redis.call('ZSCORE', kNoticesKey, entry) then return 0 end
if retry_entry ~= '' then redis.call('ZADD', kNoticesKey, to_integer_text(now_ms + retry_delay_ms), retry_entry) end
if failure_text ~= '' then add_anomaly(failure_text) end
if retry_entry == '' then call_index('HDEL', state_key(record_key), 'noticed') end
if retry_entry == entry and entry ~= '' then return 1 end
return redis.call('ZREM', kNoticesKey, entry)
