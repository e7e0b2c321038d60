-- Text functions: indentation, names, replacements, templates.
local host, modules = ...
local kit = modules.base
local find, gsub, gmatch, lower, match, sub =
  string.find, string.gsub, string.gmatch, string.lower, string.match, string.sub
local concat = table.concat
local text = {}

-- Removes the common indentation of all lines; blank lines become empty.
function text.dedent(value)
  local lines, common = {}, nil
  for line in gmatch(kit.text("dedent", 1, value) .. "\n", "(.-)\n") do
    local indent = match(line, "^[ \t]*")
    if indent == line then
      line = ""
    elseif not common or #indent < #common then
      common = common and sub(common, 1, #indent) or indent
    end
    if indent ~= "" and line ~= "" then
      while sub(indent, 1, #common) ~= common do common = sub(common, 1, -2) end
    end
    lines[#lines + 1] = line
  end
  for i = 1, #lines do lines[i] = sub(lines[i], #(common or "") + 1) end
  return concat(lines, "\n")
end

function text.prefix(value, head)
  head = kit.text("prefix", 2, head)
  local lines = {}
  for line in gmatch(kit.text("prefix", 1, value) .. "\n", "(.-)\n") do lines[#lines + 1] = head .. line end
  return concat(lines, "\n")
end

-- Returns a file name: lower-case letters, digits, '_' and '.'. Each run of other ASCII characters becomes one '_';
-- other characters are removed.
function text.name_fix(value)
  local name = gsub(lower(kit.text("name_fix", 1, value)), "[\128-\255]", "")
  return (gsub(gsub(name, "[^%w._]", "_"), "_+", "_"))
end

-- Applies name_fix to the last part of a path.
function text.path_fix(value)
  local folder, name = match(kit.text("path_fix", 1, value), "^(.-)([^/]*)$")
  return folder .. (name == "" and "" or text.name_fix(name))
end

-- Replacements: text_replacer_new():pattern("a+"):replacement("b"):regex(true):and_():pattern(...):build()
local Replacer, Builder = {}, {}
Replacer.__index, Builder.__index = Replacer, Builder

function text.replacer() return setmetatable({steps = {}, current = {}}, Builder) end

function Builder:pattern(value)
  self.current.pattern = kit.text("pattern", 1, value)
  return self
end
function Builder:replacement(value)
  self.current.replacement = kit.text("replacement", 1, value)
  return self
end
function Builder:regex(value)
  self.current.regex = value ~= false
  return self
end
function Builder:case_insensitive(value)
  self.current.case_insensitive = value ~= false
  return self
end
function Builder:and_()
  local step = self.current
  if not step.pattern or step.pattern == "" then kit.fail("invalid", "replacer: a replacement without a pattern") end
  -- A literal pattern that ignores case is implemented as an escaped regular expression.
  if step.case_insensitive and not step.regex then
    step.pattern, step.regex = gsub(step.pattern, "[%^%$%(%)%.%[%]%*%+%?%{%}|\\]", "\\%0"), true
    step.replacement = gsub(step.replacement or "", "%$", "$$")
  end
  self.steps[#self.steps + 1] = {pattern = step.pattern, replacement = step.replacement or "", regex = step.regex,
                                 case_insensitive = step.case_insensitive}
  self.current = {}
  return self
end
function Builder:build()
  if next(self.current) ~= nil or #self.steps == 0 then Builder.and_(self) end
  local steps = self.steps
  for i = 1, #steps do
    if steps[i].regex then Replacer.replace({steps = {steps[i]}}, "") end -- reports an invalid pattern early
  end
  return setmetatable({steps = steps}, Replacer)
end

local function replace_plain(value, pattern, replacement)
  local parts, at = {}, 1
  while true do
    local first, last = find(value, pattern, at, true)
    if not first then return concat(parts) .. sub(value, at) end
    parts[#parts + 1] = sub(value, at, first - 1) .. replacement
    at = last + 1
  end
end

function Replacer:replace(value)
  value = kit.text("replace", 1, value)
  for i = 1, #self.steps do
    local step = self.steps[i]
    if step.regex then
      local replaced, problem = host.regex_replace(value, step.pattern, step.replacement, step.case_insensitive)
      if not replaced then kit.fail("invalid", "replacer: the pattern %s: %s", step.pattern, problem) end
      value = replaced
    else
      value = replace_plain(value, step.pattern, step.replacement)
    end
  end
  return value
end
function Replacer:replace_file(path) return self:replace(modules.files.file_read(path)) end
function Replacer:replace_file_to(from, to) return modules.files.file_write(to, Replacer.replace_file(self, from)) end
function Replacer:replace_file_in_place(path) return Replacer.replace_file_to(self, path, path) end

return text
