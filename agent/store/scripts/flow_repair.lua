-- A look at where a flow is, and how it is mended.

--# flow_places: flows
-- {state of its mark, 1 if in mj:flows:active, when it is due or '', 1 if in mj:flows:ended, 1 if the catalog has it, revision,
-- events that wait, now, 1 if it has a checkpoint, 1 if its events are no list, what its record should say of what it is}.
local flow = arg()
local err = wrong_flow(flow) or wrong(kCatalog, 'stream')
if err then return err end
local mark, events = read_mark(flow), 'mj:events:' .. flow
local row = mark and num(mark.row) or 0
local entry = row > 0 and redis.call('XRANGE', kCatalog, dec(row), dec(row), 'COUNT', 1)[1]
return {mark and mark.state or '', redis.call('ZSCORE', kActive, flow) and 1 or 0, redis.call('ZSCORE', kDue, flow) or '',
  redis.call('ZSCORE', kEnded, flow) and 1 or 0, entry and to_table(entry[2]).flow == flow and 1 or 0, dec(revision_of(flow) or 0),
  type_of(events) == 'list' and redis.call('LLEN', events) or 0, dec(now_ms), redis.call('EXISTS', 'mj:checkpoint:' .. flow),
  wrong(events, 'list') and 1 or 0, mark and identity_of(flow, mark) or {}}

--# flow_repair: journal flows
-- Mends a flow in these ways (`fixes`), if its run and its mark are where they were when somebody looked at them. What is
-- wrong, and what mends it: domain/invariants.cpp. '', or moved: nothing was changed.
local flow, expected, state, count = arg(), num(arg()), arg(), num(arg())
local fixes = {}
for i = 1, count do fixes[i] = {kind = arg(), place = arg(), words = list_arg()} end
local err = wrong_flow(flow) or wrong(kCatalog, 'stream') or wrong('mj:anomalies', 'stream')
if err then return err end
local mark = read_mark(flow)
if not mark or mark.state ~= state or revision_of(flow) ~= expected then return 'moved' end
local row = head_of(kCatalog)
if not row then return strange_head(kCatalog) end

-- Where it belongs in each: how it comes in, how it goes.
local events, checkpoint = 'mj:events:' .. flow, 'mj:checkpoint:' .. flow
local function from(key) return function() redis.call('ZREM', key, flow) end end
local kPlaces = {
  active = {function() redis.call('ZADD', kActive, flow, flow) end, from(kActive)},
  ended = {function() redis.call('ZADD', kEnded, mark.ended_ms or dec(now_ms), flow) end, from(kEnded)},
  due = {function() redis.call('ZADD', kDue, dec(now_ms), flow) end, from(kDue)},
  events = {nil, function() if wrong(events, 'list') then redis.call('DEL', events) end end},
  checkpoint = {nil, function() redis.call('DEL', checkpoint) end},
  catalog = {function()
    redis.call('XADD', kCatalog, dec(row + 1) .. '-0', 'flow', flow, 'at', mark.created_ms or '0', 'name', mark.name or '')
    redis.call('HSET', 'mj:flow:' .. flow, 'row', dec(row + 1))
  end},
}
local doing = {
  set_mark = function(fix) redis.call('HSET', 'mj:flow:' .. flow, unpack(fix.words)) end,
  set_record = function(fix) redis.call('HSET', 'flow:' .. flow, unpack(fix.words)) end,
  enter = function(fix) kPlaces[fix.place][1]() end,
  leave = function(fix) kPlaces[fix.place][2]() end,
}
for _, fix in ipairs(fixes) do doing[fix.kind](fix) end
return ''
