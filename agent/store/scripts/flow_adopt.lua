--# flows
-- A record that another client has written becomes a flow in the making, under its own id: its jobs and its definition
-- follow, as of any other. Empty: go on, also with one that was begun and broken off. known: it was made by flow_create.
local flow, caller = arg(), arg()
local err = wrong_flow(flow)
if err then return err end
local mark = read_mark(flow)
if mark then return mark.state == 'creating' and mark.adopted and '' or 'known' end
if redis.call('EXISTS', 'flow:' .. flow) == 0 then return 'missing' end
redis.call('HSET', 'mj:flow:' .. flow, 'state', 'creating', 'adopted', '1', 'caller', caller, 'first_job', '0', 'jobs', '0',
  'key', '', 'created_ms', dec(now_ms))
redis.call('ZADD', kEnded, dec(now_ms), flow)
return ''
