-- JSON. Objects are tables with text keys. Arrays are tables with the keys 1..n; decoded arrays are marked, so that
-- empty arrays are preserved. null is json.null.
local host, modules = ...
local kit = modules.base
local type, rawget, rawlen, next, setmetatable, tostring = type, rawget, rawlen, next, setmetatable, tostring
local byte, char, format, gsub, match, sub =
  string.byte, string.char, string.format, string.gsub, string.match, string.sub
local concat, mathtype, tonumber, utf8char, utf8len = table.concat, math.type, tonumber, utf8.char, utf8.len
local error, pcall, rawequal = error, pcall, rawequal

local MAX_DEPTH, MAX_RESULT_DEPTH = 100, 48 -- for results, since replies that contain a result may have depth 64
local Array = {__name = "json.array", __metatable = "json.array"}
local null = setmetatable({}, {__name = "json.null", __tostring = function() return "null" end,
    __metatable = "json.null",
                               __newindex = function() error("json.null cannot be changed", 2) end})
-- Arrays are recognized by this table, not by their metatable, which a script could set on any table.
local marked = setmetatable({}, {__mode = "k"})

local function array(values)
  values = setmetatable(values or {}, Array)
  marked[values] = true
  return values
end

local ESCAPES = {['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n", ["\r"] = "\\r",
    ["\t"] = "\\t"}
for code = 0, 31 do
  ESCAPES[char(code)] = ESCAPES[char(code)] or format("\\u%04x", code)
end

-- Errors are plain texts; the caller prepends its name.
local function raise_problem(text) error({json = text}, 0) end

local function quote(text)
  if not utf8len(text) then raise_problem("contains bytes that are not text") end
  return '"' .. gsub(text, '[%c"\\]', ESCAPES) .. '"'
end

-- Returns the length of an array, or nil for an object.
local function count(value)
  local length = rawlen(value)
  if length == 0 then return marked[value] and next(value) == nil and 0 or nil end
  local keys = 0
  for key in next, value do
    if mathtype(key) ~= "integer" or key < 1 or key > length then return nil end
    keys = keys + 1
  end
  return keys == length and length or nil
end

local write

local function write_array(out, value, length, depth)
  out[#out + 1] = "["
  for i = 1, length do
    if i > 1 then out[#out + 1] = "," end
    write(out, rawget(value, i), depth)
  end
  out[#out + 1] = "]"
end

local function write_object(out, value, depth)
  out[#out + 1] = "{"
  local first = true
  for key, item in next, value do
    if type(key) ~= "string" then
      raise_problem(format("its key %s is not text: keys are text, or all of 1..n for an array", tostring(key)))
    end
    out[#out + 1] = (first and "" or ",") .. quote(key) .. ":"
    first = false
    write(out, item, depth)
  end
  out[#out + 1] = "}"
end

write = function(out, value, depth)
  local kind = type(value)
  if kind == "string" then
    out[#out + 1] = quote(value)
  elseif kind == "number" then
    if mathtype(value) == "integer" then
      out[#out + 1] = format("%d", value)
    elseif value ~= value or value == math.huge or value == -math.huge then
      raise_problem(tostring(value) .. " is not JSON: write json.null, or its tostring()")
    else
      local short = format("%.15g", value)
      out[#out + 1] = tonumber(short) == value and short or format("%.17g", value)
    end
  elseif kind == "boolean" or kind == "nil" then
    out[#out + 1] = kind == "nil" and "null" or tostring(value)
  elseif rawequal(value, null) then
    out[#out + 1] = "null"
  elseif kind == "table" then
    if depth >= MAX_DEPTH then raise_problem("is nested too deep, or contains itself") end
    local length = count(value)
    if length then write_array(out, value, length, depth + 1) else write_object(out, value, depth + 1) end
  else
    raise_problem("a value of type " .. kind .. " is not JSON: write its parts, or its tostring()")
  end
end

local SPACE = "^[ \n\r\t]*()"
local BACK = {['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t"}

local function raise_syntax_error(text, at, message)
  local line = select(2, gsub(sub(text, 1, at - 1), "\n", "")) + 1
  raise_problem(format("%s at byte %d (line %d)", message, at, line))
end

local function read_unicode(text, at)
  local code = tonumber(match(text, "^%x%x%x%x", at), 16)
  if not code then raise_syntax_error(text, at, "\\u without four hexadecimal digits") end
  at = at + 4
  if code >= 0xDC00 and code <= 0xDFFF then raise_syntax_error(text, at - 6, "half a character") end
  if code < 0xD800 or code > 0xDBFF then return utf8char(code), at end
  local low = tonumber(match(text, "^\\u(%x%x%x%x)", at) or "", 16)
  if not low or low < 0xDC00 or low > 0xDFFF then raise_syntax_error(text, at - 6, "half a character") end
  return utf8char(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), at + 6
end

local function read_text(text, at)
  local start = at
  local plain, stop = match(text, '^([^"\\%c]*)()', at)
  if sub(text, stop, stop) == '"' then return plain, stop + 1 end
  local parts = {plain}
  at = stop
  while true do
    local here = sub(text, at, at)
    if here == '"' then return concat(parts), at + 1 end
    if here == "" then raise_syntax_error(text, start, "text without an end") end
    if here == "\\" then
      local letter = sub(text, at + 1, at + 1)
      if letter == "u" then
        parts[#parts + 1], at = read_unicode(text, at + 2)
      elseif BACK[letter] then
        parts[#parts + 1], at = BACK[letter], at + 2
      else
        raise_syntax_error(text, at, "unknown escape")
      end
    elseif here == "\127" then
      parts[#parts + 1], at = here, at + 1
    else
      raise_syntax_error(text, at, "a control character in a text")
    end
    plain, stop = match(text, '^([^"\\%c]*)()', at)
    parts[#parts + 1], at = plain, stop
  end
end

local function read_number(text, at)
  local digits, stop = match(text, "^(%-?%d+)()", at)
  if not digits or match(digits, "^%-?0%d") then raise_syntax_error(text, at, "not a value") end
  local fraction, after = match(text, "^(%.%d+)()", stop)
  if fraction then stop = after end
  local exponent, behind = match(text, "^([eE][+-]?%d+)()", stop)
  if exponent then stop = behind end
  return tonumber(digits .. (fraction or "") .. (exponent or "")), stop
end

local WORDS = {t = {"true", true}, f = {"false", false}, n = {"null", null}}
local read

local function read_array(text, at, depth)
  local values, n = array(), 0
  at = match(text, SPACE, at)
  if sub(text, at, at) == "]" then return values, at + 1 end
  while true do
    n = n + 1
    values[n], at = read(text, at, depth)
    at = match(text, SPACE, at)
    local mark = sub(text, at, at)
    if mark == "]" then return values, at + 1 end
    if mark ~= "," then raise_syntax_error(text, at, "neither , nor ] in an array") end
    at = at + 1
  end
end

local function read_object(text, at, depth)
  local values = {}
  at = match(text, SPACE, at)
  if sub(text, at, at) == "}" then return values, at + 1 end
  while true do
    at = match(text, SPACE, at)
    if sub(text, at, at) ~= '"' then raise_syntax_error(text, at, "an object's key is a text") end
    local key
    key, at = read_text(text, at + 1)
    at = match(text, SPACE, at)
    if sub(text, at, at) ~= ":" then raise_syntax_error(text, at, "no : after a key") end
    values[key], at = read(text, at + 1, depth)
    at = match(text, SPACE, at)
    local mark = sub(text, at, at)
    if mark == "}" then return values, at + 1 end
    if mark ~= "," then raise_syntax_error(text, at, "neither , nor } in an object") end
    at = at + 1
  end
end

read = function(text, at, depth)
  if depth > MAX_DEPTH then raise_syntax_error(text, at, format("nested more than %d deep", MAX_DEPTH)) end
  at = match(text, SPACE, at)
  local first = sub(text, at, at)
  if first == '"' then return read_text(text, at + 1) end
  if first == "{" then return read_object(text, at + 1, depth + 1) end
  if first == "[" then return read_array(text, at + 1, depth + 1) end
  local word = WORDS[first]
  if word and sub(text, at, at + #word[1] - 1) == word[1] then return word[2], at + #word[1] end
  if first == "" then raise_syntax_error(text, at, "ends too early") end
  return read_number(text, at)
end

-- prefix: prepended to error messages.
local function run_guarded(prefix, action, ...)
  local fine, value = pcall(action, ...)
  if fine then return value end
  if type(value) == "table" and rawget(value, "json") then kit.fail("invalid", "%s: %s", prefix, value.json) end
  error(value, 0)
end

local function encode(value, depth)
  local out = {}
  write(out, value, depth or 0)
  return concat(out)
end

local function decode(text)
  local value, at = read(text, 1, 0)
  at = match(text, SPACE, at)
  if at <= #text then raise_syntax_error(text, at, "data after the value") end
  return value
end

local json = {null = null}
function json.array(values) return array(kit.table("json.array", 1, values, {})) end
function json.encode(value) return run_guarded("json.encode", encode, value) end
function json.decode(text) return run_guarded("json.decode", decode, kit.text("json.decode", 1, text)) end

-- Functions for modules, not for scripts.
function kit.to_json(prefix, value) return run_guarded(prefix, encode, value) end
function kit.result_json(prefix, value) return run_guarded(prefix, encode, value, MAX_DEPTH - MAX_RESULT_DEPTH) end
kit.from_json = decode
kit.null = null
kit.is_array = function(value) return count(value) ~= nil end

return json
