-- Allocation of record ids.
local kMaxId = 4294967295
-- Returns the first of `count` consecutive free ids after `last`, or nil if none was found. Clients may choose ids
-- freely. The distance between two probes doubles while ids are in use; then the gap between the last used and the
-- first free id is halved. So the number of probes grows with the logarithm of the number of records.
local function free_ids(last, count, is_used)
  local function highest_used(first)
    for id = first + count - 1, first, -1 do
      if is_used(id) then return id end
    end
  end
  local most, low, first, step = kMaxId - count + 1, last, last + 1, 1
  while true do
    if first > most then
      if low >= most then return nil end
      first = most
    end
    local used = highest_used(first)
    if not used then break end
    low, first, step = used, used + step, step * 2
  end
  local nearer = first
  while nearer - low > 1 do
    local middle = math.floor((low + nearer) / 2)
    if is_used(middle) then low = middle else nearer = middle end
  end
  return nearer < first and highest_used(nearer) and first or nearer
end
local function is_used(key) return redis.call('EXISTS', key, 'mj:claim:' .. key) > 0 end
