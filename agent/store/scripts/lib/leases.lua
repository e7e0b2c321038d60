-- Live claims, read page by page.
local kLeasesPage = 1000
-- Returns a page of {job, end of its lease, ...} with the leases that end after `after` (empty: all leases), earliest
-- first, and the value of `after` for the next page (empty: this is the last page). A lease that is renewed between two
-- pages is in a later page. Leases with the same end are in the same page.
local function page_of_leases(after)
  local from = after == '' and '-inf' or '(' .. after
  local page = redis.call('ZRANGEBYSCORE', 'mj:leases', from, '+inf', 'WITHSCORES', 'LIMIT', 0, kLeasesPage)
  if #page < 2 * kLeasesPage then return page, '' end
  local last = page[#page]
  while page[#page] == last do page[#page], page[#page - 1] = nil, nil end
  if #page == 0 then page = redis.call('ZRANGEBYSCORE', 'mj:leases', last, last, 'WITHSCORES') end
  return page, page[#page]
end
