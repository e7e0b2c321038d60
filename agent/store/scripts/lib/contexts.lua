-- Contexts as a whole.
-- Each step that changes a job enters it in mj:jobs with the present moment, so that its last member changes, unless
-- another job was changed within the same millisecond: the number of leases shows its claim. The number of keys shows new
-- records that are in no list.
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
