-- Fills a template for each order in a list, and stores the letters as artifacts.
local letter = dedent([[
  Dear {{ name }},
  your order of {{ count }} boxes is on its way.
]])

local orders = {{name = "Ada", count = 3}, {name = "Grace", count = 12}}
for number, order in ipairs(orders) do
  local text = letter:gsub("{{ (%w+) }}", function(field) return tostring(order[field]) end)
  file_write(mycojobs.artifacts .. "/" .. name_fix(order.name) .. ".txt", text)
  mycojobs.progress(number / #orders, order.name)
end
result.letters = #orders
