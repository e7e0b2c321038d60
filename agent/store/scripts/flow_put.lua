--# flows
-- Empty, or missing.
local flow, hash, definition, name, fields = arg(), arg(), arg(), arg(), list_arg()
local index = kCatalog .. ':' .. name
local err = wrong_flow(flow) or wrong_definition(hash) or wrong(kCatalog, 'stream') or wrong(index, 'stream')
if err then return err end
local mark = read_mark(flow)
if not mark then return 'missing' end
if mark.state ~= 'creating' then
  if mark.definition == hash then return '' end
  return redis.error_reply('MJCONFLICT flow ' .. flow .. ' has another definition, which it keeps')
end
local row, index_row = head_of(kCatalog), name == '' and 0 or head_of(index)
if not row or not index_row then return strange_head(row and index or kCatalog) end
use_definition(hash, definition, 'flow:' .. flow)
redis.call('HSET', 'flow:' .. flow, 'status', 'dispatched', 'detail', 'new', 'updated_at', now_s, unpack(fields))
redis.call('XADD', kCatalog, dec(row + 1) .. '-0', 'flow', flow, 'at', mark.created_ms or dec(now_ms), 'name', name)
if name ~= '' then
  redis.call('XADD', index, dec(index_row + 1) .. '-0', 'flow', flow, 'at', mark.created_ms or dec(now_ms), 'name', name)
end
local values = to_table(fields)
redis.call('HSET', 'mj:flow:' .. flow, 'ids', values.jobs or '', 'parent', values.parent or '')
redis.call('HSET', 'mj:flow:' .. flow, 'state', 'new', 'definition', hash, 'name', name, 'row', dec(row + 1), 'index_row',
  dec(index_row + 1))
redis.call('ZREM', kEnded, flow)
return ''
