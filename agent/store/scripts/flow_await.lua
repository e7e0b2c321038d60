--# journal places ends flows
local context, flow, other = arg(), arg(), arg()
local waits = 'mj:flow-waits:' .. other
local err = wrong(waits, 'set') or wrong(kDue, 'zset') or wrong('mj:anomalies', 'stream') or wrong('mj:flow:' .. other, 'hash')
if err then return err end
local mark = read_mark(other)
if not mark or mark.state == 'ended' then
  raise_event(context .. ' ' .. flow, 'flow flow:' .. other)
elseif redis.call('SCARD', waits) >= 1000 and redis.call('SISMEMBER', waits, flow) == 0 then
  return redis.error_reply('MJFULL flow ' .. other .. ' is waited for by 1000 flows already')
else
  redis.call('SADD', waits, flow)
end
return 0
