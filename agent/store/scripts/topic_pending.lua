--#
-- Messages that wait on a topic and have a record, oldest first. An entry without one leaves the list at once, so that it
-- is in nobody's way; it is looked for again until it has been missing for wait_ms, and then forgotten. So many entries in
-- one call, so that no other client waits for long.
local topic, max, wait_ms = arg(), num(arg()), num(arg())
local list, missing = 'mj:topic:' .. topic, 'mj:topic-missing:' .. topic
local err = wrong(list, 'list') or wrong(missing, 'zset')
if err then return err end
local function is_message_key(key)
  return #key <= 64 and string.match(key, '^message:[1-9]%d*:[1-9]%d*$')
end
if redis.call('EXISTS', missing) == 1 then
  local waiting = redis.call('ZRANGE', missing, 0, max - 1, 'WITHSCORES')
  for i = 1, #waiting, 2 do
    local key, since = waiting[i], num(waiting[i + 1])
    local there = redis.call('EXISTS', key) == 1
    if there then redis.call('RPUSH', list, key) end
    if there or now_ms - since >= wait_ms or since > now_ms + wait_ms then redis.call('ZREM', missing, key) end
  end
end
local found = {}
local entries = redis.call('LRANGE', list, -max, -1)
for i = #entries, 1, -1 do
  local key = entries[i]
  if not is_message_key(key) then
    redis.call('LREM', list, -1, key)
  elseif redis.call('EXISTS', key) == 0 then
    redis.call('ZADD', missing, 'NX', dec(now_ms), key)
    redis.call('LREM', list, -1, key)
  else
    found[#found + 1] = key
  end
end
return found
