--#
-- refused, over (it was taken or refused before) or missing.
local topic, message, reason = arg(), arg(), arg()
local list, mark = 'mj:topic:' .. topic, 'mj:message:' .. message
local err = wrong(list, 'list') or wrong(message, 'hash') or wrong(mark, 'hash')
if err then return err end
local answer = 'refused'
if redis.call('EXISTS', mark) == 1 then
  answer = 'over'
elseif redis.call('EXISTS', message) == 0 then
  answer = 'missing'
else
  redis.call('HSET', mark, 'state', 'refused', 'left', 0)
  redis.call('HSET', message, 'status', 'error', 'error', reason, 'updated_at', now_s)
end
redis.call('LREM', list, 0, message)
return answer
