-- Allocation of record ids.
local kMaxId = 4294967295
-- Returns the first of `count` consecutive free ids after `last_id`, or nil if there are no such ids. Clients may
-- choose ids freely. The distance between two probes doubles while ids are in use; then the gap between the last used
-- and the first free id is halved. So the number of probes grows with the logarithm of the number of records.
local function find_free_ids(last_id, count, is_taken)
  local function find_highest_used(candidate)
    for id = candidate + count - 1, candidate, -1 do
      if is_taken(id) then return id end
    end
  end
  local max_first, used_id, candidate, distance = kMaxId - count + 1, last_id, last_id + 1, 1
  while true do
    if candidate > max_first then
      if used_id >= max_first then return nil end
      candidate = max_first
    end
    local highest_used_id = find_highest_used(candidate)
    if not highest_used_id then break end
    used_id, candidate, distance = highest_used_id, highest_used_id + distance, distance * 2
  end
  local lowest_free = candidate
  while lowest_free - used_id > 1 do
    local middle = math.floor((used_id + lowest_free) / 2)
    if is_taken(middle) then used_id = middle else lowest_free = middle end
  end
  return lowest_free < candidate and find_highest_used(lowest_free) and candidate or lowest_free
end
local function is_used(key) return redis.call('EXISTS', key, kClaimKey .. key) > 0 end
