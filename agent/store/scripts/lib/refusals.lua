-- Who asked in vain for what (domain/rights.h): the newest 1000.
local function add_refusal(newest, actor, action, thing, list)
  local number = num(newest and string.match(newest[1], '^%d+')) + 1
  local added = redis.pcall('XADD', 'mj:refusals', 'MAXLEN', 1000, dec(number) .. '-0', 'at', dec(now_ms), 'actor', actor,
    'action', action, 'thing', thing, 'list', list)
  return type(added) == 'table' and added.err and added or number
end
-- Of whoever asks again and again: once a minute, as far as the newest 50 tell. One that cannot be noted is refused all
-- the same.
local function add_refusal_once(actor, action, thing, list)
  local newest = redis.pcall('XREVRANGE', 'mj:refusals', '+', '-', 'COUNT', 50)
  if newest.err then return end
  for _, entry in ipairs(newest) do
    local is = to_table(entry[2])
    if is.actor == actor and is.action == action and is.thing == thing and num(is.at) + 60000 > now_ms then return end
  end
  add_refusal(newest[1], actor, action, thing, list)
end
