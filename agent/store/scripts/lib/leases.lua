-- Live claims, page by page.
local kLeasesPage = 1000
-- {job, end of its lease, ...}: leases that end after this moment ('': all), the earliest first, and the moment after which
-- the next page begins ('': there is none). A lease that is renewed between two pages is in a later page. Leases with the
-- same end are in the same page.
local function page_of_leases(after)
  local from = after == '' and '-inf' or '(' .. after
  local page = redis.call('ZRANGEBYSCORE', 'mj:leases', from, '+inf', 'WITHSCORES', 'LIMIT', 0, kLeasesPage)
  if #page < 2 * kLeasesPage then return page, '' end
  local last = page[#page]
  while page[#page] == last do page[#page], page[#page - 1] = nil, nil end
  if #page == 0 then page = redis.call('ZRANGEBYSCORE', 'mj:leases', last, last, 'WITHSCORES') end
  return page, page[#page]
end
