--# journal flows
-- Makes a flow's mark, indexes and record what its journal says. {moved} if it is at another revision; else {'', differences...}.
local context, flow, dry, expected, state = arg(), arg(), arg() == '1', num(arg()), arg()
local drop_checkpoint, due, fields = arg() == '1', arg() == '1', list_arg()
local err = wrong_flow(flow) or wrong(kCatalog, 'stream') or wrong('mj:anomalies', 'stream')
if err then return err end
local mark = read_mark(flow)
if not mark or revision_of(flow) ~= expected then return {'moved'} end
local differences = {''}
local function differs(text, ...)
  differences[#differences + 1] = 'flow:' .. flow .. ': ' .. text
  if not dry then redis.call(...) end
end
if mark.state ~= state then
  differs('its mark says ' .. shown(mark.state) .. ', its journal ' .. state, 'HSET', 'mj:flow:' .. flow, 'state', state)
end
local function place(key, should, score)
  local there = redis.call('ZSCORE', key, flow)
  if there and not should then differs('it is ' .. state .. ' and in ' .. key, 'ZREM', key, flow) end
  if should and not there then differs('it is ' .. state .. ' and not in ' .. key, 'ZADD', key, score, flow) end
end
place(kActive, state == 'active', flow)
place(kEnded, state == 'ended' or state == 'creating', mark.ended_ms or dec(now_ms))
if state ~= 'active' then place(kDue, false) end
local events = 'mj:events:' .. flow
if wrong(events, 'list') then differs(events .. ' is no list', 'DEL', events) end
if state == 'active' and (due or type_of(events) == 'list') and num(redis.call('ZSCORE', kDue, flow) or 9e15) > now_ms then
  differs('there is something to do and it is not due', 'ZADD', kDue, dec(now_ms), flow)
end
if drop_checkpoint and redis.call('EXISTS', 'mj:checkpoint:' .. flow) == 1 then
  differs('its checkpoint does not say what its journal says', 'DEL', 'mj:checkpoint:' .. flow)
end
local should = {'context_id', context}
for _, list in ipairs({identity_of(flow, mark), fields}) do
  for _, word in ipairs(list) do should[#should + 1] = word end
end
local record = to_table(redis.call('HGETALL', 'flow:' .. flow))
for i = 1, #should, 2 do
  if (record[should[i]] or '') ~= should[i + 1] then
    differs('its record has ' .. should[i] .. ' ' .. shown(record[should[i]] or 'none'), 'HSET', 'flow:' .. flow, should[i], should[i + 1])
  end
end
if state ~= 'creating' then
  local row = num(mark.row) > 0 and redis.call('XRANGE', kCatalog, dec(num(mark.row)), dec(num(mark.row)), 'COUNT', 1)[1]
  if not row or to_table(row[2]).flow ~= flow then
    local head = head_of(kCatalog)
    if not head then return strange_head(kCatalog) end
    differs('the catalog lacks it', 'XADD', kCatalog, dec(head + 1) .. '-0', 'flow', flow, 'at', mark.created_ms or '0', 'name',
      mark.name or '')
    if not dry then redis.call('HSET', 'mj:flow:' .. flow, 'row', dec(head + 1)) end
  end
end
return differences
