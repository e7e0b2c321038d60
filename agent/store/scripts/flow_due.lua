--# journal flows
-- {ms until the next, flow...}.
local max = num(arg())
local err = wrong(kDue, 'zset') or wrong('mj:anomalies', 'stream')
if err then return err end
local answer = {'0'}
for _, flow in ipairs(redis.call('ZRANGEBYSCORE', kDue, '-inf', dec(now_ms), 'LIMIT', 0, max)) do
  local mark = is_id(flow) and type_of('mj:flow:' .. flow) == 'hash' and read_mark(flow)
  if mark and mark.state == 'active' then
    answer[#answer + 1] = flow
  else
    add_anomaly('mj:flows:due names ' .. shown(flow) .. ', which is no flow under way; the entry was dropped')
    redis.call('ZREM', kDue, flow)
  end
end
local next_due = redis.call('ZRANGEBYSCORE', kDue, '(' .. dec(now_ms), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
if next_due then answer[1] = dec(math.max(1, math.min(num(next_due) - now_ms, 4000000000))) end
return answer
