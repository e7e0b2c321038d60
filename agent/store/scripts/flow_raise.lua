--# flows
-- Due now, also if a commit that has not seen this comes in between.
local context, flow = arg(), arg()
local err = wrong_flow(flow)
if err then return err end
local mark = read_mark(flow)
if not mark or mark.state ~= 'active' then return 0 end
local revision = revision_of(flow)
if not revision then return strange_head('mj:run:' .. flow) end
redis.call('HSET', 'mj:flow:' .. flow, 'raised', dec(revision))
redis.call('ZADD', kDue, 'LT', dec(now_ms), flow)
redis.call('PUBLISH', kDue, context .. ' ' .. flow)
return 1
