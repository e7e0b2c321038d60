--# flows
-- Rows of a catalog before this flow: {last row that was looked at, {flow, at, name, record}...}. last: the row where
-- the page before ended; else the flow says where to begin.
local key, before, last, max = arg(), arg(), arg(), num(arg())
local err = wrong(key, 'stream')
if err then return err end
if last == '' and before ~= '0' and type_of('mj:flow:' .. before) == 'hash' then
  last = redis.call('HGET', 'mj:flow:' .. before, key == kCatalog and 'row' or 'index_row') or ''
end
local to = last == '' and '+' or dec(math.max(0, num(last) - 1))
local rows, bytes = {''}, 0
for _, entry in ipairs(redis.call('XREVRANGE', key, to, '-', 'COUNT', 500)) do
  if #rows > max or bytes > 4194304 then return rows end
  local row = to_table(entry[2])
  local flow = row.flow or ''
  rows[1] = string.match(entry[1], '^%d+')
  if is_id(flow) and (before == '0' or num(flow) < num(before)) then
    local record = {}
    if type_of('flow:' .. flow) == 'hash' then
      for _, name in ipairs(redis.call('HKEYS', 'flow:' .. flow)) do
        if name ~= 'definition' and name ~= 'nodes' and name ~= 'result' and #record < 400 then
          local value = redis.call('HGET', 'flow:' .. flow, name) or ''
          bytes = bytes + #value
          record[#record + 1] = name
          record[#record + 1] = value
        end
      end
    end
    rows[#rows + 1] = {flow, row.at or '0', row.name or '', record}
  end
end
return rows
