--# places
-- {job, its prerequisites, for how long it has waited, 1 if it is of a flow, approvals that were given}... : each is given
-- out once in again_ms.
local max, again_ms, looker = num(arg()), num(arg()), arg()
local err = wrong('mj:prerequisites', 'zset')
if err then return err end
local looked = redis.pcall('HGET', 'mj:looking', 'at')  -- by a coordinator, when
looked = type(looked) == 'string' and num(looked) or 0
-- Agents leave them to coordinators where one has looked lately.
if looker == 'coordinator' then
  if math.abs(now_ms - looked) >= 1000 then redis.pcall('HSET', 'mj:looking', 'at', dec(now_ms)) end
elseif math.abs(now_ms - looked) < 5000 then
  return {}
end
local found = {}
for _, job in ipairs(redis.call('ZRANGEBYSCORE', 'mj:prerequisites', '-inf', dec(now_ms), 'LIMIT', 0, max)) do
  local claim = read_claim(job)
  if claim and claim.state == 'prerequisites' and type_of(job) == 'hash' then
    redis.call('ZADD', 'mj:prerequisites', dec(now_ms + again_ms), job)
    local given = {}
    for name in pairs(claim) do
      if string.sub(name, 1, 9) == 'approved:' then given[#given + 1] = string.sub(name, 10) end
    end
    found[#found + 1] = {job, redis.call('HGET', job, 'prerequisites') or '', dec(math.max(0, now_ms - num(claim.waiting_since))),
      claim.flow and '1' or '', given, looked > 0 and '1' or ''}
  else
    redis.call('ZREM', 'mj:prerequisites', job)
  end
end
return found
