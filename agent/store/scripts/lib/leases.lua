-- Live claims, read page by page.
local kLeasesPage = 1000
-- Returns a page of {job, end of its lease, ...} with the leases that end after `cursor` (all leases if it is empty),
-- earliest first, and the cursor of the next page, or '' after the last page. A lease that is renewed between two pages
-- is in a later page. Leases with the same end are in the same page.
local function read_lease_page(cursor)
  local min_score = cursor == '' and '-inf' or '(' .. cursor
  local page = redis.call('ZRANGEBYSCORE', kLeasesKey, min_score, '+inf', 'WITHSCORES', 'LIMIT', 0, kLeasesPage)
  if #page < 2 * kLeasesPage then return page, '' end
  local last_score = page[#page]
  while page[#page] == last_score do page[#page], page[#page - 1] = nil, nil end
  if #page == 0 then page = redis.call('ZRANGEBYSCORE', kLeasesKey, last_score, last_score, 'WITHSCORES') end
  return page, page[#page]
end
