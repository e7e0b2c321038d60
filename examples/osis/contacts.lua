-- A small address book: objects with indexed fields, found by field and by words.
local contacts = osis.kind("contact", {namespace = "examples", index = {"email", "city"}, text = {"notes"}})

local people = {
  {id = "ada", email = "ada@example.org", city = "London", notes = "writes programs for engines"},
  {id = "grace", email = "grace@example.org", city = "New York", notes = "writes compilers"},
  {id = "alan", email = "alan@example.org", city = "London", notes = "breaks ciphers"},
}
for _, person in ipairs(people) do contacts:put(person) end

local in_london = {}
for person in contacts:find("city", "London") do in_london[#in_london + 1] = person.id end
table.sort(in_london)
result.in_london = in_london

for person in contacts:search("compilers") do result.compilers = person.email end
