--# flows
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
