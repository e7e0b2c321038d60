-- The globals of a script, and the end of a job: prepare() runs before the script, describe() and encode_result() after
-- it. Code that runs after the script must not use names that a script can reach.
local host, modules = ...
local kit, json = modules.base, modules.json
local byte, concat, format, find, match, sub =
  string.byte, table.concat, string.format, string.find, string.match, string.sub
local utf8len, huge, mathtype = utf8.len, math.huge, math.type

local MAX_MESSAGE, MAX_TRACEBACK, MAX_NOTE = 8 << 10, 64 << 10, 1000
local MAX_RETRY = 10 ^ 9 -- seconds; the agent has a limit of its own
local globals = _G
local result = {}
local max_result_bytes = math.huge
local chunk = "" -- chunk name of the script in Lua's messages
local M = {}

local function is_retry_instruction(retry)
  return retry == false or (type(retry) == "number" and retry >= 0 and retry < huge)
end

-- Replaces bytes of invalid UTF-8 texts by "?".
local function to_plain_text(text)
  if utf8len(text) then return text end
  return (string.gsub(text, "[\128-\255]", "?"))
end

local function is_inside_character(text, at)
  local code = byte(text, at)
  return code and code >= 0x80 and code < 0xC0
end

local function shorten(text, limit)
  text = to_plain_text(text)
  if #text <= limit then return text end
  local first, last = limit // 2, #text - limit // 2
  while is_inside_character(text, first + 1) do first = first - 1 end
  while is_inside_character(text, last) do last = last + 1 end
  return sub(text, 1, first) .. format("\n[%d bytes omitted]\n", last - 1 - first) .. sub(text, last)
end

local function note(text, fraction)
  host.send(host.NOTE, kit.to_json("note", {text = shorten(text, MAX_NOTE), fraction = fraction}))
end

local mycojobs = {cancelled = host.cancelled}

-- Raises an error that controls the next attempt of the job: retry = false forbids it; a number delays it by that many
-- seconds.
function mycojobs.failure(text, options)
  options = kit.options("mycojobs.failure", 2, options, {retry = true})
  local retry = options.retry
  if retry ~= nil and retry ~= true and not is_retry_instruction(retry) then
    kit.fail("invalid", "mycojobs.failure: retry = %s is neither a boolean nor a number of seconds", tostring(retry))
  end
  local failure = kit.new_error("failed", kit.text("mycojobs.failure", 1, text, ""), "Failure")
  failure.retry = retry
  error(failure, 0)
end

function mycojobs.progress(fraction, text)
  if type(fraction) == "string" and text == nil then fraction, text = nil, fraction end
  if fraction ~= nil and not (kit.number("mycojobs.progress", 1, fraction) >= 0 and fraction <= 1) then
    kit.fail("invalid", "mycojobs.progress: %s is not from 0 to 1", tostring(fraction))
  end
  note(kit.text("mycojobs.progress", 2, text, ""), fraction)
end

-- Writes an artifact to a path below mycojobs.artifacts and creates its folders.
function mycojobs.artifact(name, text)
  name, text = kit.path("mycojobs.artifact", 1, name), kit.text("mycojobs.artifact", 2, text)
  if find("/" .. name .. "/", "/%.*/") then kit.fail("invalid", "mycojobs.artifact: %q is not a plain path", name) end
  local path = kit.folder .. "/artifacts"
  for part in string.gmatch(name, "([^/]+)/") do
    path = path .. "/" .. part
    host.mkdir(path) -- the folder may exist; other errors are reported when the file is written
  end
  local path_of_file = kit.folder .. "/artifacts/" .. name
  local done, problem, code = host.write_file(path_of_file, text)
  if not done then kit.fail_path("mycojobs.artifact", path_of_file, problem, code, true) end
  return path_of_file
end

function mycojobs.sleep(seconds)
  host.sleep(kit.number("mycojobs.sleep", 1, seconds, nil, 0))
end

function mycojobs.secret(name)
  name = kit.text("mycojobs.secret", 1, name)
  if find(name, "[/%z]") or name == "" or find(name, "^%.") then
    kit.fail("invalid", "mycojobs.secret: %q is not a name", name)
  end
  local value = host.read_file(kit.folder .. "/secrets/" .. name)
  if not value then kit.denied("mycojobs.secret: the secret " .. format("%q", name), format("secrets = [%q]", name)) end
  return value
end

local log = {}
for _, level in next, {"debug", "info", "warn", "error"} do
  local head = string.upper(level) .. " "
  log[level] = function(...)
    local parts = {}
    for i = 1, select("#", ...) do parts[i] = tostring((select(i, ...))) end
    host.write_error(head .. concat(parts, " ") .. "\n")
  end
end

-- Before the script.

-- pairs() yields each job once, by name, or by id if it has no name. Lookup accepts both.
local function make_inputs(results, names)
  names = names or {}
  return setmetatable(results, {__index = function(_, job)
    if mathtype(job) == "integer" then job = tostring(job) end
    return rawget(results, names[job] or job)
  end})
end

-- Publishes the data of a run as globals. For a warm script, this happens immediately before main is called.
local function set_run_globals(facts, inputs_json)
  local job = {deadline = (facts.deadline_unix_ms or 0) / 1000}
  local ours = {args = true, granted = true, executor = true, input_names = true, flow = true, warm = true}
  for name, value in next, facts do
    if not ours[name] and not find(name, "^max_") then job[name] = value end
  end
  local data = facts.flow or {}
  local each = data.each or {}
  mycojobs.flow = {inputs = data.inputs or {}, signals = data.signals or {}, index = each.index, count = each.count}
  mycojobs.each = each.value
  local inputs = make_inputs(kit.from_json(inputs_json), facts.input_names)
  -- As in lua5.4: the name of the script at index 0, its arguments from 1.
  local arg = {[0] = chunk}
  for i, text in ipairs(facts.args or {}) do arg[i] = text end
  rawset(globals, "arg", arg)
  for name, value in next, {job = job, inputs = inputs} do
    mycojobs[name] = value
    rawset(globals, name, value)
  end
  return job
end

-- Replaces the data of a run while the module of a warm script is loaded.
local function block_run_globals()
  local barred = setmetatable({}, {__index = function()
    kit.fail("invalid", "job, inputs, arg, mycojobs.flow and mycojobs.each belong to one run: read them in main(job)")
  end})
  for _, name in next, {"job", "inputs", "flow"} do mycojobs[name] = barred end
  rawset(globals, "job", barred)
  rawset(globals, "inputs", barred)
  rawset(globals, "arg", barred)
end

local coming -- warm scripts: data of the next run


function M.prepare(facts_json, environment_json, inputs_json, folder)
  kit.folder, mycojobs.artifacts = folder, folder .. "/artifacts"
  local facts = kit.from_json(facts_json)
  local granted = facts.granted
  if type(granted) == "table" then kit.granted = granted end
  host.limit_memory(kit.granted.memory or 0)
  for _, field in next, {"fs.read", "fs.write", "secrets"} do kit.granted[field] = kit.granted[field] or {} end
  max_result_bytes = facts.max_result_bytes or max_result_bytes
  local environment = kit.from_json(environment_json)
  for name, value in next, environment do host.setenv(name, value) end
  chunk = facts.warm and "<script>" or facts.name or ""
  if chunk == "" or #chunk > 59 or find(chunk, "[%c]") then
    chunk = format("<job %s:%s>", tostring(facts.caller_id), tostring(facts.id))
  end
  local executor = facts.executor
  mycojobs.result = result
  for name, value in next, {env = environment, result = result, log = log, json = json, mycojobs = mycojobs} do
    rawset(globals, name, value)
  end
  if facts.warm then
    coming = {facts, inputs_json}
    block_run_globals()
  else
    set_run_globals(facts, inputs_json)
  end
  kit.open_standard()
  if modules[executor] and modules[executor].publish then modules[executor].publish(globals) end
  return "=" .. chunk, facts.max_artifact_bytes or 0, facts.warm or false
end

-- Warm scripts: accepts a further request.
function M.renew(facts_json, environment_json, inputs_json)
  local facts = kit.from_json(facts_json)
  host.limit_memory(kit.granted.memory or 0)
  local environment = kit.from_json(environment_json)
  host.renew_environment(environment)
  rawset(globals, "env", environment)
  coming = {facts, inputs_json}
end

-- Warm scripts: called before each run. Returns main and its argument, or nil if there is no main.
function M.begin_run()
  local main = rawget(globals, "main")
  local job = set_run_globals(coming[1], coming[2])
  coming = nil
  for key in next, result do result[key] = nil end
  rawset(globals, "result", result)
  return type(main) == "function" and main or nil, job
end

-- After the script.

-- Returns the type, message and line of a script's error. line: innermost line on the stack.
local function read_error(value, line)
  if type(value) == "string" then
    -- Each coroutine that an error passes prepends its position; the last position is the error's own.
    local head = chunk .. ":"
    while sub(value, 1, #head) == head do
      local number, behind = match(value, "^(%d+): ()", #head + 1)
      if not number then break end
      value, line = sub(value, behind), math.tointeger(number) or line
    end
    return "Error", value, line
  end
  if type(value) == "table" then
    local kind, message = rawget(value, "type"), rawget(value, "message")
    kind = type(kind) == "string" and kind ~= "" and kind or "Error"
    if type(message) == "string" then return kind, message, line end
    local fine, text = pcall(kit.to_json, "error", value)
    local meta = getmetatable(value)
    if fine and not (type(meta) == "table" and rawget(meta, "__tostring")) then return kind, text, line end
  end
  local fine, text = pcall(tostring, value)
  return "Error", fine and text or "<its text is not available>", line
end

-- kind: type of an error that the script did not raise, such as SyntaxError; nil: read from the value. A ResultError
-- forbids a retry, which would repeat the work and return the same result. Returns the payload of the error frame, and
-- the text for stderr.
function M.describe(value, trace, line, kind)
  local own, message
  local forbids_retry = kind == "ResultError"
  own, message, line = read_error(value, line)
  kind = kind or own
  local report = {type = shorten(kind, 200), message = shorten(message, MAX_MESSAGE),
      traceback = shorten(trace, MAX_TRACEBACK), line = line}
  if type(value) == "table" then
    local retry = rawget(value, "retry")
    if is_retry_instruction(retry) then report.retry = retry and math.min(retry, MAX_RETRY) end
  end
  if forbids_retry then report.retry = false end
  local where = line > 0 and format("%s:%d: ", chunk, line) or ""
  local shown = format("%s%s: %s\n%s", where, kind, message, trace)
  return kit.to_json("error", report), shown
end

-- Cuts a text so that it is still recognized as too large.
local function truncate(text, most)
  if #text <= most then return text end
  while is_inside_character(text, most + 1) do most = most + 1 end
  return sub(text, 1, most)
end

-- Returns the payload of the result frame, or nil and the error. The agent rejects a result over its limit; in that
-- case only enough entries to exceed the limit are encoded.
local function encode(values)
  if type(values) ~= "table" then
    return nil, format("result is a %s, not a table: return a value with result.NAME = VALUE, and give a variable of "
      .. "the script's own another name", type(values))
  end
  local entries, left = {}, max_result_bytes
  for key, value in next, values do
    if type(key) ~= "string" then
      return nil, format("result: the key %s is not text: write result[tostring(%s)]", tostring(key), tostring(key))
    end
    if not utf8len(key) then return nil, "result: a key contains bytes that are not text" end
    local fine, text, typed = true, value, type(value) ~= "string"
    local prefix = format('result["%s"]', shorten(key, 200))
    if typed then fine, text = pcall(kit.result_json, prefix, value) end
    if not fine and type(text) == "string" then error(text, 0) end -- out of memory
    if not fine then return nil, tostring(text) end
    if not utf8len(text) then return nil, prefix .. ": contains bytes that are not text" end
    key = truncate(key, left + 1)
    left = left - #key - #text
    -- A cut value is no longer JSON, and is rejected for its size.
    entries[key] = typed and left >= 0 and {text} or truncate(text, left + #key + #text + 1)
    if left < 0 then
      note(format("%s: with it the result is over %d bytes", prefix, max_result_bytes))
      break
    end
  end
  return kit.to_json("result", entries)
end

-- Returns the values of encode(). A script that never used the given table may have an unrelated global `result`: if
-- that value is invalid, the job finishes without a result and with a warning.
function M.encode_result(returned)
  if returned ~= nil and type(returned) ~= "table" then
    return nil, format("main(job) has returned a %s: return a table, which is the result, or nothing", type(returned))
  end
  local values = returned or rawget(globals, "result")
  if values == nil then values = result end
  local payload, problem = encode(values)
  if payload or returned ~= nil or rawequal(values, result) or next(result) ~= nil then return payload, problem end
  host.write_error(format("mycojobs: warning: %s; the job finishes without a result\n", problem))
  return kit.to_json("result", {})
end

return M
