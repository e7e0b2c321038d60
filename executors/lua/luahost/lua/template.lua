-- Templates: {{ value }}, {% if %}, {% for %}, {# comment #}, and filters after '|'. A frequently used subset of Tera.
local host, modules = ...
local kit, text = modules.base, modules.text
local find, format, gsub, lower, match, sub, upper =
  string.find, string.format, string.gsub, string.lower, string.match, string.sub, string.upper
local concat = table.concat

local function raise_error(line, ...)
  kit.fail("invalid", "template: line %d: %s", line, format(...))
end

local function format_value(value)
  if value == nil then return "" end
  return type(value) == "table" and kit.to_json("template", value) or tostring(value)
end

local FILTERS = {
  upper = function(value) return upper(format_value(value)) end,
  lower = function(value) return lower(format_value(value)) end,
  trim = function(value) return match(format_value(value), "^%s*(.-)%s*$") end,
  length = function(value) return type(value) == "table" and rawlen(value) or #format_value(value) end,
  json_encode = function(value) return kit.to_json("template", value) end,
  default = function(value, default) if value == nil then return default end return value end,
  join = function(value, between)
    local parts = {}
    for i = 1, type(value) == "table" and rawlen(value) or 0 do parts[i] = format_value(value[i]) end
    return concat(parts, between or "")
  end,
  replace = function(value, from,
      to) return text.replacer():pattern(from):replacement(to):build():replace(format_value(value)) end,
}

-- Expressions: texts, numbers, true, false, a.b.c, filters with arguments, not, == != < > <= >=, and, or.
local function split_words(code, line)
  local words, at = {}, 1
  while true do
    at = match(code, "^%s*()", at)
    if at > #code then return words end
    local word, stop = match(code, '^("[^"]*")()', at)
    if not word then word, stop = match(code, "^('[^']*')()", at) end
    if not word then word, stop = match(code, "^(%-?%d+%.?%d*)()", at) end
    if not word then word, stop = match(code, "^([%a_][%w_%.]*)()", at) end
    if not word then word, stop = match(code, "^([=!<>]=)()", at) end
    if not word then word, stop = match(code, "^([<>|(),=])()", at) end
    if not word then raise_error(line, "%q is not valid", sub(code, at)) end
    words[#words + 1], at = word, stop
  end
end

local function find_value(names, path)
  local value = names
  for part in string.gmatch(path, "[^%.]+") do
    if type(value) ~= "table" then return nil end
    local item = value[part]
    if item == nil and tonumber(part) then item = value[tonumber(part) + 1] end -- Tera counts from 0
    value = item
  end
  return value
end

local Reader = {}
Reader.__index = Reader
function Reader:peek() return self.words[self.at] end
function Reader:take(expected)
  local word = self.words[self.at]
  if word == nil then raise_error(self.line, "an expression ends too early") end
  if expected and word ~= expected then raise_error(self.line, "%s where %s was expected", word, expected) end
  self.at = self.at + 1
  return word
end

function Reader:literal()
  local word = self:take()
  if find(word, "^[\"']") then return sub(word, 2, -2) end
  if find(word, "^%-?%d") then return math.tointeger(tonumber(word)) or tonumber(word) end
  if word == "true" or word == "false" then return word == "true" end
  if not find(word, "^[%a_]") then raise_error(self.line, "%s where a value was expected", word) end
  return find_value(self.names, word)
end

function Reader:filtered()
  local value = self:literal()
  while self:peek() == "|" do
    self:take()
    local name, arguments = self:take(), {}
    if not FILTERS[name] then raise_error(self.line, "unknown filter %s", name) end
    if self:peek() == "(" then
      self:take()
      while self:peek() ~= ")" do
        -- Tera has named arguments: default(value="x")
        if self.words[self.at + 1] == "=" then self.at = self.at + 2 end
        arguments[#arguments + 1] = self:literal()
        if self:peek() ~= ")" then self:take(",") end
      end
      self:take(")")
    end
    value = FILTERS[name](value, arguments[1], arguments[2])
  end
  return value
end

local function is_true(value)
  return value ~= nil and value ~= false and value ~= "" and value ~= 0 and not (type(value) == "table"
      and next(value) == nil)
end

local COMPARE = {
  ["=="] = function(a, b) return a == b end, ["!="] = function(a, b) return a ~= b end,
  ["<"] = function(a, b) return a < b end, [">"] = function(a, b) return a > b end,
  ["<="] = function(a, b) return a <= b end, [">="] = function(a, b) return a >= b end,
}

function Reader:comparison()
  if self:peek() == "not" then
    self:take()
    return not is_true(self:comparison())
  end
  local left = self:filtered()
  local compare = COMPARE[self:peek()]
  if not compare then return left end
  local sign, right = self:take(), nil
  right = self:filtered()
  if sign ~= "==" and sign ~= "!=" and (type(left) ~= type(right) or (type(left) ~= "number"
      and type(left) ~= "string")) then
    raise_error(self.line, "%s compares two numbers or two texts", sign)
  end
  return compare(left, right)
end

-- `and` has a higher precedence than `or`.
function Reader:conjunction()
  local value = self:comparison()
  while self:peek() == "and" do
    self:take()
    local right_operand = self:comparison()
    value = is_true(value) and is_true(right_operand)
  end
  return value
end

function Reader:value()
  local value = self:conjunction()
  while self:peek() == "or" do
    self:take()
    local right_operand = self:conjunction()
    value = is_true(value) or is_true(right_operand)
  end
  return value
end

local function evaluate(code, names, line)
  local reader = setmetatable({words = split_words(code, line), at = 1, names = names, line = line}, Reader)
  local value = reader:value()
  if reader:peek() then raise_error(line, "unexpected %s", reader:peek()) end
  return value
end

-- Parses a template to a tree of nodes {kind, code, line, parts..., otherwise}.
local function parse(source)
  local root = {kind = "root", parts = {}}
  local open, at, line = {root}, 1, 1
  local parts = root.parts
  while true do
    local first, _, mark = find(source, "{([{%%#])", at)
    if not first then break end
    parts[#parts + 1] = {kind = "text", text = sub(source, at, first - 1)}
    line = line + select(2, gsub(sub(source, at, first - 1), "\n", ""))
    local closing = ({["{"] = "}}", ["%"] = "%}", ["#"] = "#}"})[mark]
    local last, stop = find(source, closing, first + 2, true)
    if not last then raise_error(line, "{%s without %s", mark, closing) end
    local code = match(sub(source, first + 2, last - 1), "^%-?%s*(.-)%s*%-?$")
    local word, rest = match(code, "^(%a+)%s*(.*)$")
    local top = open[#open]
    if mark == "{" then
      parts[#parts + 1] = {kind = "value", code = code, line = line}
    elseif mark == "%" and (word == "if" or word == "for") then
      local node = {kind = word, code = rest, line = line, parts = {}}
      parts[#parts + 1], open[#open + 1], parts = node, node, node.parts
    elseif mark == "%" and word == "elif" and top.kind == "if" then
      local node = {kind = "if", code = rest, line = line, parts = {}, inner = true}
      top.otherwise, open[#open + 1], parts = {node}, node, node.parts
    elseif mark == "%" and word == "else" and (top.kind == "if" or top.kind == "for") and not top.otherwise then
      top.otherwise = {}
      parts = top.otherwise
    elseif mark == "%" and word and word == "end" .. top.kind then
      while open[#open].inner do open[#open] = nil end
      open[#open] = nil
      local above = open[#open]
      parts = above.otherwise or above.parts
    elseif mark == "%" then
      raise_error(line, "{%% %s %%} is not valid here", code)
    end
    line = line + select(2, gsub(sub(source, first, stop), "\n", ""))
    at = stop + 1
  end
  if #open > 1 then raise_error(open[#open].line, "{%% %s %%} is not closed", open[#open].kind) end
  parts[#parts + 1] = {kind = "text", text = sub(source, at)}
  return root
end

local render

local function render_for(out, node, names)
  local name, code = match(node.code, "^([%a_][%w_]*)%s+in%s+(.+)$")
  if not name then raise_error(node.line, "write {%% for x in list %%}") end
  local values = evaluate(code, names, node.line)
  if values ~= nil and type(values) ~= "table" then raise_error(node.line, "%s is not a list", code) end
  local count = values and rawlen(values) or 0
  if count == 0 and node.otherwise then return render(out, node.otherwise, names) end
  for i = 1, count do
    local inner = setmetatable({[name] = values[i], loop = {index = i, index0 = i - 1, first = i == 1,
        last = i == count}}, {__index = names})
    render(out, node.parts, inner)
  end
end

render = function(out, parts, names)
  for i = 1, #parts do
    local node = parts[i]
    if node.kind == "text" then
      out[#out + 1] = node.text
    elseif node.kind == "value" then
      local value = evaluate(node.code, names, node.line)
      if value == nil then raise_error(node.line, "unknown variable %s", node.code) end
      out[#out + 1] = format_value(value)
    elseif node.kind == "for" then
      render_for(out, node, names)
    elseif is_true(evaluate(node.code, names, node.line)) then
      render(out, node.parts, names)
    elseif node.otherwise then
      render(out, node.otherwise, names)
    end
  end
end

local Template = {}
Template.__index = Template

function text.template(source)
  return setmetatable({root = parse(kit.text("template", 1, source)), names = {}}, Template)
end
function text.template_open(path) return text.template(modules.files.file_read(path)) end

function Template:add_var(name, value)
  self.names[kit.text("add_var", 1, name)] = value
  return self
end
function Template:add_vars(values)
  for name, value in next, kit.table("add_vars", 1, values) do self.names[name] = value end
  return self
end
function Template:render()
  local out = {}
  render(out, self.root.parts, self.names)
  return concat(out)
end
function Template:render_to_file(path) return modules.files.file_write(path, Template.render(self)) end

return text.template
