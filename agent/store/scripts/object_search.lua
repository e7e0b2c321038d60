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
local high, chunk = '(' .. rarest .. '\2', #words == 1 and limit + 1 or 200
local matching, looked_at, seen, all_seen = {}, 0, '', false
while looked_at < most and #matching <= limit and not all_seen do
  local members = redis.call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, chunk)
  all_seen = #members < chunk
  looked_at = looked_at + #members
  for _, member in ipairs(members) do
    local all = true
    low, seen = '(' .. member, string.match(member, '\1(.*)$')
    for _, word in ipairs(words) do
      all = all and (word == rarest or redis.call('ZSCORE', key, word .. '\1' .. seen))
      if not all then break end
    end
    if all then matching[#matching + 1] = seen end
    if #matching > limit then break end
  end
end
local page = page_of(of, matching, limit, max_bytes)
if page[1] == '' and not all_seen then page[1] = seen end
return {'ok', page}
