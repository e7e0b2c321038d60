--# flows
-- {record, revision, checkpoint, its revision, entries, 1 if there are more, events, anomalies, now, events taken before,
-- what the record should say of what it is}.
local flow, after, max = arg(), arg(), num(arg())
local err = wrong('flow:' .. flow, 'hash') or wrong('mj:flow:' .. flow, 'hash')
if err then return err end
local long, size = too_long('flow:' .. flow, 67108864)
if long then
  return redis.error_reply('MJFULL flow:' .. flow .. ': ' .. long .. ': ' .. dec(size) .. ' bytes are more than a flow may have: HDEL it')
end
local mark, anomalies = read_mark(flow), {}
local function readable(key, want)
  local is = type_of(key)
  if is ~= want and is ~= 'none' then
    anomalies[#anomalies + 1] = key .. ' is a ' .. is .. ' where a ' .. want .. ' belongs: delete it, then doctor --rebuild'
  end
  return is == want
end

local text, at = '', 0
if readable('mj:checkpoint:' .. flow, 'hash') then
  text = redis.call('HGET', 'mj:checkpoint:' .. flow, 'text') or ''
  at = num(redis.call('HGET', 'mj:checkpoint:' .. flow, 'at'))
end
local run, revision = 'mj:run:' .. flow, at
local entries, bytes, more = {}, 0, 0
if readable(run, 'stream') then
  revision = head_of(run)
  if not revision then return strange_head(run) end
  if at > revision then
    anomalies[#anomalies + 1] = 'mj:checkpoint:' .. flow .. ' is of revision ' .. dec(at) .. ', and the run has ' .. dec(revision)
    text, at = '', 0
  end
  local from = after == '' and at or num(after)
  while #entries < max and bytes < 4194304 do
    local page = redis.call('XRANGE', run, dec(from + 1), '+', 'COUNT', math.min(100, max - #entries))
    for _, entry in ipairs(page) do
      for _, word in ipairs(entry[2]) do bytes = bytes + #word end
      entries[#entries + 1] = entry
      from = num(string.match(entry[1], '^%d+'))
    end
    if #page == 0 then break end
  end
  if from < revision and #redis.call('XRANGE', run, dec(from + 1), '+', 'COUNT', 1) > 0 then more = 1 end
elseif at > 0 then
  anomalies[#anomalies + 1] = run .. ' is gone: the run goes on from its checkpoint at revision ' .. dec(at)
end
local events = readable('mj:events:' .. flow, 'list') and redis.call('LRANGE', 'mj:events:' .. flow, 0, 999) or {}
-- Who reads on has read the record: what is long in it, and says nothing new, would cost more than all else.
local record
if after ~= '' and redis.call('HSTRLEN', 'flow:' .. flow, 'nodes') > 65536 then
  record = {}
  for _, name in ipairs(redis.call('HKEYS', 'flow:' .. flow)) do
    if name ~= 'nodes' then
      record[#record + 1] = name
      record[#record + 1] = redis.call('HGET', 'flow:' .. flow, name)
    end
  end
else
  record = redis.call('HGETALL', 'flow:' .. flow)
end
return {record, dec(revision), after == '' and text or '', dec(after == '' and at or 0), entries, more,
  events, anomalies, dec(now_ms), mark and mark.taken or '0', mark and identity_of(flow, mark) or {}}
