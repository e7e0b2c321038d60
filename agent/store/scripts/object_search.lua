--# objects
-- The objects that have all of these words, whose ids follow `after`. The ids of the rarest word are gone through, so many
-- in one call at most. Answers ok and a page; or indexing, undeclared.
local of, after, limit, max_bytes, most = arg(), arg(), num(arg()), num(arg()), num(arg())
local words = list_arg()
local key = entry_key(of, '')
local err = wrong_kind(of) or wrong(key, 'zset')
if err then return err end
local declared = false
for _, name in ipairs(redis.call('HKEYS', kind_key(of))) do declared = declared or string.sub(name, 1, 2) == 't ' end
if not declared then return {'undeclared'} end
if redis.call('HEXISTS', kind_key(of), 'backfill') == 1 then return {'indexing'} end

local rarest, fewest
for _, word in ipairs(words) do
  local count = redis.call('ZLEXCOUNT', key, '[' .. word .. '\1', '(' .. word .. '\2')
  if not fewest or count < fewest then rarest, fewest = word, count end
end
local low = after == '' and '[' .. rarest .. '\1' or '(' .. rarest .. '\1' .. after
local members = redis.call('ZRANGEBYLEX', key, low, '(' .. rarest .. '\2', 'LIMIT', 0, most + 1)
local matching, seen = {}, ''
for i, member in ipairs(members) do
  if i > most or #matching > limit then break end
  local id, all = string.match(member, '\1(.*)$'), true
  for _, word in ipairs(words) do
    all = all and redis.call('ZSCORE', key, word .. '\1' .. id)
    if not all then break end
  end
  if all then matching[#matching + 1] = id end
  seen = id
end
local page = page_of(of, matching, limit, max_bytes)
if page[1] == '' and #members > most then page[1] = seen end
return {'ok', page}
