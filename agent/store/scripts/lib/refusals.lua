-- The list of the newest 1000 requests that the table of rights (security/rights.toml) denied.

-- Adds a refusal. `newest` is the newest entry of the list, or nil. Returns the number of the new entry, or an error.
local function add_refusal(newest, actor, action, resource, access_list)
  local number = to_number(newest and string.match(newest[1], '^%d+')) + 1
  local added = redis.pcall('XADD', kRefusalsKey, 'MAXLEN', 1000, to_integer_text(number) .. '-0', 'at', to_integer_text(now_ms), 'actor', actor,
    'action', action, 'thing', resource, 'list', access_list)
  return type(added) == 'table' and added.err and added or number
end
-- Adds a refusal, unless the newest 50 entries contain the same refusal from the last minute. Errors are ignored, since
-- the request is denied in any case.
local function add_refusal_once(actor, action, resource, access_list)
  local newest = redis.pcall('XREVRANGE', kRefusalsKey, '+', '-', 'COUNT', 50)
  if newest.err then return end
  for _, entry in ipairs(newest) do
    local fields = to_table(entry[2])
    if fields.actor == actor and fields.action == action and fields.thing == resource and to_number(fields.at) + 60000 > now_ms then return end
  end
  add_refusal(newest[1], actor, action, resource, access_list)
end
