-- Returns a digest that changes with each change of a context, so that delete_context detects changes since the last
-- read. Each step that changes a job sets its time in mj:jobs, so the newest entry of mj:jobs changes. If another job
-- was changed within the same millisecond, the number of leases reveals a new claim. The number of keys of the database
-- reveals new records that are in no index.
local function revision_of_context(context)
  local parts = {}
  local function add(value) parts[#parts + 1] = #tostring(value) .. ':' .. tostring(value) end
  local function size(command, key, want) add(type_of(key) == want and redis.call(command, key) or -1) end
  local record = 'context:' .. context
  for _, text in ipairs(type_of(record) == 'hash' and redis.call('HGETALL', record) or {}) do add(text) end
  local last = type_of('mj:jobs') == 'zset' and redis.call('ZRANGE', 'mj:jobs', 0, 0, 'REV', 'WITHSCORES') or {}
  for _, text in ipairs(last) do add(text) end
  size('ZCARD', 'mj:leases', 'zset')
  size('ZCARD', 'mj:flows:active', 'zset')
  size('LLEN', 'msg_out', 'list')
  size('LLEN', 'msg_out_coordinator', 'list')
  size('ZCARD', 'mj:inbox', 'zset')
  add(redis.call('DBSIZE'))
  return redis.sha1hex(table.concat(parts))
end
