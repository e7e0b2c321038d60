-- Programs and processes.
local host, modules = ...
local kit, files = modules.base, modules.files
local find, format, gsub, match = string.find, string.format, string.gsub, string.match
local concat = table.concat
local process = {}

-- Runs a program and returns its output. words: the command and its arguments. api_name: name of the function that the
-- script called, for messages. Raises an error if the program cannot be started.
function kit.run_words(api_name, words, options)
  kit.need_exec(api_name)
  local request = {input = options.input, folder = options.folder, echo = options.echo}
  for i = 1, #words do
    if find(words[i], "\0", 1, true) then kit.fail("invalid", "%s: argument %d contains NUL", api_name, i) end
    request[i] = words[i]
  end
  local out, err, code = host.run(request)
  if out then return {stdout = out, stderr = err, code = code, success = code == 0} end
  if code == "ENOENT" then
    kit.fail("not_found", "%s: %s: program not found%s", api_name, words[1],
        options.folder and ", or folder not found" or "")
  elseif code == "EAGAIN" then
    kit.fail("too_large", "%s: %s: the job has reached its limit of processes; to allow more: policy: pids = 32",
        api_name, words[1])
  end
  kit.fail("failed", "%s: %s: %s", api_name, words[1], err)
end

local function last_line(text)
  return match(text, "([^\n]+)%s*$") or ""
end

function kit.check_success(api_name, shown, result)
  if result.success then return result end
  local reason = last_line(result.stderr)
  local failure = kit.new_error("failed", format("%s: %s: exit code %d%s", api_name, shown, result.code,
      reason ~= "" and ": " .. reason or ""))
  failure.stdout, failure.stderr, failure.exit_code = result.stdout, result.stderr, result.code
  error(failure, 0)
end

-- run("ls -l"):silent():execute() uses a shell; run{"ls", "-l"}:execute() does not.
local Run = {}
Run.__index = Run

local function new_run(command)
  if type(command) == "table" then
    local words = {}
    for i = 1, #command do words[i] = kit.text("run", i, command[i]) end
    if #words == 0 then kit.fail("invalid", "run: a command has at least a program") end
    return setmetatable({words = words, shown = concat(words, " "), die_on_failure = true}, Run)
  end
  command = kit.text("run", 1, command)
  if not find(command, "%S") then kit.fail("invalid", "run: the command is empty") end
  -- Several lines are a script, which ends at the first command that fails.
  local flags = find(match(command, "^%s*(.-)%s*$"), "\n", 1, true) and "-ec" or "-c"
  return setmetatable({words = {"/bin/sh", flags, command},
      shown = gsub(match(command, "^%s*([^\n]*)"), "(.)%s+$", "%1"),
                       die_on_failure = true}, Run)
end

function Run:silent() self.is_silent = true return self end
function Run:ignore_error() self.die_on_failure = false return self end
function Run:die(value) self.die_on_failure = value ~= false return self end
function Run:log() self.is_logged = true return self end
function Run:input(text) self.stdin = kit.text("input", 1, text) return self end
function Run:folder(path) self.cwd = kit.path("folder", 1, path) return self end

function Run:execute()
  if self.is_logged then host.write_error("INFO run: " .. self.shown .. "\n") end
  local result = kit.run_words("run", self.words, {input = self.stdin, folder = self.cwd, echo = not self.is_silent})
  if self.die_on_failure then kit.check_success("run", self.shown, result) end
  return result
end

process.run = new_run
function process.run_command(command) return new_run(command):execute() end
function process.run_silent(command) return new_run(command):silent():execute() end
function process.new_run_options() return {die = true, silent = false, log = false, input = nil, folder = nil} end
function process.run_with_options(command, options)
  options = kit.options("run_with_options", 2, options, {die = 1, silent = 1, log = 1, input = 1, folder = 1})
  local run = new_run(command):die(options.die)
  if options.silent then run:silent() end
  if options.log then run:log() end
  if options.input then run:input(options.input) end
  if options.folder then run:folder(options.folder) end
  return run:execute()
end
process.which = files.which

-- Reads a process of the job; other processes are invisible in its PID namespace. During exec(2), a process briefly has
-- an empty command line, so it is read again. A process whose command line stays empty is a zombie or has cleared it.
local function read_process(pid)
  local status, words
  for try = 1, 20 do
    status = host.read_file("/proc/" .. pid .. "/status")
    if not status then return nil end -- the process has ended
    words = gsub(host.read_file("/proc/" .. pid .. "/cmdline") or "", "%z", " ")
    if words ~= "" or match(status, "State:%s*Z") then break end
    host.sleep(0.001)
  end
  local name = match(status, "Name:%s*([^\n]*)")
  return {pid = tonumber(pid), name = name, command = words == "" and name or (gsub(words, " $", "")),
          memory = (tonumber(match(status, "VmRSS:%s*(%d+)")) or 0) * 1024, state = match(status, "State:%s*(%a)")}
end

function process.process_list(pattern)
  pattern = kit.text("process_list", 1, pattern, "")
  local list = {}
  local names = host.list("/proc") or {}
  for i = 1, #names do
    local entry = find(names[i], "^%d+$") and read_process(names[i])
    if entry and (find(entry.name, pattern, 1, true) or find(entry.command, pattern, 1, true)) then
      list[#list + 1] = entry
    end
  end
  table.sort(list, function(a, b) return a.pid < b.pid end)
  return list
end

function process.process_get(pattern)
  local list = process.process_list(kit.text("process_get", 1, pattern))
  if #list == 0 then kit.fail("not_found", "process_get: no process of this job matches %q", pattern) end
  if #list > 1 then kit.fail("conflict", "process_get: %d processes of this job match %q", #list, pattern) end
  return list[1]
end

-- Sends SIGTERM to matching processes, except the script itself and the first process of the job.
function process.kill(pattern)
  pattern = kit.text("kill", 1, pattern)
  if pattern == "" then kit.fail("invalid", "kill: the pattern is empty") end
  local count = 0
  for _, entry in next, process.process_list(pattern) do
    if entry.pid ~= 1 and entry.pid ~= host.pid() and host.kill(entry.pid, 15) then count = count + 1 end
  end
  return count == 0 and "no process matches " .. pattern or format("requested %d processes to end", count)
end

-- Requires rsync on the host.
function files.rsync(from, to)
  from, to = kit.path("rsync", 1, from), kit.path("rsync", 2, to)
  local result = kit.run_words("rsync", {"rsync", "-a", "--delete", "--", from, to}, {})
  kit.check_success("rsync", from .. " to " .. to, result)
  return format("synchronised %s to %s", from, to)
end

return process
