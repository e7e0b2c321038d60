--# flows
-- {state of its mark, 1 if in mj:flows:active, when it is due or '', 1 if in mj:flows:ended, 1 if the catalog has it, revision,
-- events that wait, now}.
local flow = arg()
local err = wrong_flow(flow) or wrong(kCatalog, 'stream')
if err then return err end
local mark, events = read_mark(flow) or {}, 'mj:events:' .. flow
local row = num(mark.row) > 0 and redis.call('XRANGE', kCatalog, dec(num(mark.row)), dec(num(mark.row)), 'COUNT', 1)[1]
return {mark.state or '', redis.call('ZSCORE', kActive, flow) and 1 or 0, redis.call('ZSCORE', kDue, flow) or '',
  redis.call('ZSCORE', kEnded, flow) and 1 or 0, row and to_table(row[2]).flow == flow and 1 or 0, dec(revision_of(flow) or 0),
  type_of(events) == 'list' and redis.call('LLEN', events) or 0, dec(now_ms)}
