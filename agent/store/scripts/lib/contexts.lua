-- Returns a digest that changes with each change of a context, so that delete_context detects changes since the last
-- read. Each step that changes a job sets its time in mj:jobs, so the newest entry of mj:jobs changes. If another job
-- was changed within the same millisecond, the number of leases reveals a new claim. The number of keys of the database
-- reveals new records that are in no index.
local function compute_context_revision(context)
  local parts = {}
  local function add_part(value) parts[#parts + 1] = #tostring(value) .. ':' .. tostring(value) end
  local function add_size(command, key, expected_type) add_part(key_type(key) == expected_type and redis.call(command, key) or -1) end
  local record = 'context:' .. context
  for _, text in ipairs(key_type(record) == 'hash' and redis.call('HGETALL', record) or {}) do add_part(text) end
  local newest_job = key_type(kJobsKey) == 'zset' and redis.call('ZRANGE', kJobsKey, 0, 0, 'REV', 'WITHSCORES') or {}
  for _, text in ipairs(newest_job) do add_part(text) end
  add_size('ZCARD', kLeasesKey, 'zset')
  add_size('ZCARD', kFlowsActiveKey, 'zset')
  add_size('LLEN', 'msg_out', 'list')
  add_size('LLEN', 'msg_out_coordinator', 'list')
  add_size('ZCARD', kInboxKey, 'zset')
  add_part(redis.call('DBSIZE'))
  return redis.sha1hex(table.concat(parts))
end
