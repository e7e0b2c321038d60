--# journal places flows
-- One flow leaves: all that is its own. 1: gone. 0: some of the jobs of one that was never finished are left, call again.
-- not_ended; missing.
local flow, asked = arg(), arg() == '1'  -- asked: by a person, whatever its time is
local before_ms = num(arg())
local err = wrong_shared() or wrong_flow(flow)
if err then return err end
local mark = read_mark(flow)
if not mark then
  redis.call('ZREM', kEnded, flow)
  return 'missing'
end
if mark.state ~= 'ended' and mark.state ~= 'creating' then return 'not_ended' end
if not asked and num(redis.call('ZSCORE', kEnded, flow) or nil) > before_ms then return 'not_ended' end
if not asked and redis.call('HEXISTS', 'mj:flow:' .. flow, 'noticed') == 1 and redis.call('EXISTS', 'mj:notices') == 1 then
  redis.call('ZADD', kEnded, dec(now_ms), flow)  -- until its end was told
  return 'not_ended'
end

if mark.state == 'creating' then
  local first, swept = num(mark.first_job), num(mark.swept)
  local last = math.min(num(mark.jobs), swept + 200)
  for i = swept, last - 1 do
    local job = 'job:' .. (mark.caller or '0') .. ':' .. dec(first + i)
    local claim = read_claim(job)
    if claim and claim.state == 'planned' and string.match(claim.flow or '', ' (%d+)$') == flow then
      local revisions = {}
      for revision in string.gmatch(claim.revs or '', '%d+') do revisions[#revisions + 1] = revision .. '-0' end
      local journal = 'mj:journal:' .. queue_of(job, claim)
      if #revisions > 0 and type_of(journal) == 'stream' then redis.call('XDEL', journal, unpack(revisions)) end
      redis.call('UNLINK', job, 'mj:claim:' .. job)
      redis.pcall('ZREM', 'mj:jobs', job)
    end
  end
  if last < num(mark.jobs) then
    redis.call('HSET', 'mj:flow:' .. flow, 'swept', dec(last))
    return 0
  end
end
local function drop_row(key, row)
  if row and num(row) > 0 and type_of(key) == 'stream' then redis.call('XDEL', key, dec(num(row)) .. '-0') end
end
drop_row(kCatalog, mark.row)
if mark.name and mark.name ~= '' then
  local index = kCatalog .. ':' .. mark.name
  drop_row(index, mark.index_row)
  if type_of(index) == 'stream' and redis.call('XLEN', index) == 0 then redis.call('UNLINK', index) end
end
drop_definition(mark.definition, 'flow:' .. flow)
local names = 'mj:flow-keys:' .. (mark.caller or '0')
if mark.key and mark.key ~= '' and type_of(names) == 'hash'
  and string.match(redis.call('HGET', names, mark.key) or '', '^(%d+) ') == flow then
  redis.call('HDEL', names, mark.key)
end
-- What another client has written stays until it is a flow.
if not (mark.adopted and mark.state == 'creating') then redis.call('UNLINK', 'flow:' .. flow) end
redis.call('UNLINK', 'mj:run:' .. flow, 'mj:checkpoint:' .. flow, 'mj:events:' .. flow, 'mj:flow-waits:' .. flow,
  'mj:flow:' .. flow)
redis.call('ZREM', kEnded, flow)
return 1
