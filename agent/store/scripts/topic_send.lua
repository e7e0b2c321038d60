--#
-- sent, or other: the message exists with other content.
local topic, message, fields = arg(), arg(), list_arg()
local list, mark = 'mj:topic:' .. topic, 'mj:message:' .. message
local err = wrong(list, 'list') or wrong(message, 'hash') or wrong(mark, 'hash')
if err then return err end
local there = redis.call('EXISTS', message) == 1
if there and #fields > 0 then
  local want, is = to_table(fields), to_table(redis.call('HGETALL', message))
  for _, name in ipairs({'message', 'message_type', 'job', 'flow'}) do
    if (want[name] or '') ~= (is[name] or '') then return 'other' end
  end
elseif #fields > 0 then
  redis.call('HSET', message, unpack(fields))
end
if redis.call('EXISTS', mark) == 0 and not redis.call('LPOS', list, message) then redis.call('LPUSH', list, message) end
redis.call('PUBLISH', topic, message)
return 'sent'
