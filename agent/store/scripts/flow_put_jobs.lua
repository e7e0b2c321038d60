--# journal places ends flows
-- {}; or {index, record}... of those that are there and were not accepted; or a text: why not.
local context, flow, count = arg(), arg(), num(arg())
local err = wrong_shared() or wrong_flow(flow)
if err then return err end
local mark, me = read_mark(flow), context .. ' ' .. flow
if not mark then return 'missing' end
local open = mark.state == 'creating' or mark.state == 'new'

local fresh, exist = {}, {}
for i = 1, count do
  local job, queue, accepted, fields = arg(), arg(), arg() == '1', list_arg()
  err = wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash')
  if err then return err end
  local claim, content = read_claim(job), digest(fields)
  local there = redis.call('EXISTS', job) == 1
  if claim.flow == me then
    if claim.content and claim.content ~= content then return job .. ' is a job of this flow already, with other content' end
  elseif claim.flow then
    return job .. ' belongs to flow ' .. shown(claim.flow) .. ' (context, id)'
  elseif claim.state then
    return job .. ' is ' .. claim.state .. ' by itself: a flow takes only jobs that were never submitted'
  elseif not open then
    return 'flow ' .. flow .. ' has begun, so that ' .. job .. ' cannot be added'
  else
    if there then
      local status = redis.call('HGET', job, 'status') or ''
      if status ~= '' and status ~= 'dispatched' and status ~= 'waiting_for_prerequisites' then
        return job .. ' has run before: its record says ' .. shown(status)
      end
      if was_pushed(queue, job) then
        return job .. ' stands in ' .. shown(queue) .. ' already: a flow takes only jobs that were never queued'
      end
      if not accepted then exist[#exist + 1] = {i, redis.call('HGETALL', job)} end
    end
    fresh[#fresh + 1] = {job = job, queue = queue, fields = fields, claim = claim, there = there, content = content}
  end
end
if #exist > 0 then return exist end
for _, each in ipairs(fresh) do
  local job = each.job
  if not each.there then
    redis.call('HSET', job, 'id', string.match(job, '%d+$'), 'created_at', now_s, unpack(each.fields))
  end
  local supervisor = each.there and to_table(each.fields).supervisor_url
  if supervisor then redis.call('HSET', job, 'supervisor_url', supervisor) end
  redis.call('HSET', job, 'flow_id', flow, 'status', 'waiting_for_prerequisites', 'detail', 'planned', 'updated_at', now_s)
  plan(job, each.claim, each.queue, me)
  redis.call('HSET', 'mj:claim:' .. job, 'content', each.content)
end
return {}
