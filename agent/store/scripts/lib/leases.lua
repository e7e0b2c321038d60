-- Live claims, read page by page.
local kLeasesPage = 1000
-- Returns a page of {job, end of its lease, ...} with the leases that end after `cursor` (empty: all leases), earliest
-- first, and the cursor of the next page (empty: this is the last page). A lease that is renewed between two
-- pages is in a later page. Leases with the same end are in the same page.
local function read_lease_page(cursor)
  local min_score = cursor == '' and '-inf' or '(' .. cursor
  local page = redis.call('ZRANGEBYSCORE', 'mj:leases', min_score, '+inf', 'WITHSCORES', 'LIMIT', 0, kLeasesPage)
  if #page < 2 * kLeasesPage then return page, '' end
  local last_score = page[#page]
  while page[#page] == last_score do page[#page], page[#page - 1] = nil, nil end
  if #page == 0 then page = redis.call('ZRANGEBYSCORE', 'mj:leases', last_score, last_score, 'WITHSCORES') end
  return page, page[#page]
end
