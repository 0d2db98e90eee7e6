-- Answers questions about one document over HTTP: it is read once, and each question goes on in a fork of the session, in
-- a coroutine.
--
--     lua5.4 server.lua MODEL_DIR FILE HOST:PORT      (or luajit; Debian: lua-socket)
--
-- The body of a POST is a question, and that of the response is the answer, which is sent as it comes:
--
--     curl -N --data 'What is it about?' http://127.0.0.1:8080/
--
-- Several are answered at once. A client that leaves ends its own answer, and Ctrl-C ends the server. SIGTERM, of which
-- Lua knows nothing, ends the program at once.
local quire = require("quire")
local socket = require("socket")

local MAX_BYTES = 64 * 1024 -- of a question
local MAX_TOKENS = 200 -- of an answer
local MAX_CLIENTS = 400 -- at once: select takes descriptors below 1024, and an answer has two
local MAX_WAITING = 1024 -- connections that are not accepted yet; by default one beyond 32 waits a second or more
local OK = "200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nTransfer-Encoding: chunked"

-- Sockets and streams that can be read, or written, before a coroutine goes on: it yields the list and the object.
local reading, writing = {}, {}

local function go_on(resume, ...)
  local list, object = resume(...)
  if list then
    list[object] = resume
  end
end

-- A line, or so many bytes; nil, and why, where it does not come.
local function receive(client, what)
  local data, failure, part = client:receive(what)
  while failure == "timeout" and #part < 16 * MAX_BYTES do
    coroutine.yield(reading, client)
    data, failure, part = client:receive(what, part)
  end
  return data, failure
end

local function send(client, data)
  local sent, failure, last = client:send(data)
  while failure == "timeout" do
    coroutine.yield(writing, client)
    sent, failure, last = client:send(data, last + 1)
  end
  assert(sent, failure)
end

local function begin(client, status)
  send(client, "HTTP/1.1 " .. status .. "\r\nConnection: close\r\n\r\n")
end

local function refuse(client, status)
  begin(client, status .. "\r\nContent-Length: 0")
  client:shutdown("send")
  receive(client, 16 * MAX_BYTES) -- a client that is still sending would not see the response otherwise
end

-- The body of a request, or nil and a status that says why it is not read.
local function read_question(client)
  local method, length = assert(receive(client, "*l")):match("^%S+"), nil
  repeat
    local header = assert(receive(client, "*l"))
    length = tonumber(header:lower():match("^content%-length:%s*(%d+)%s*$")) or length
  until header == ""
  if method ~= "POST" then
    return nil, "405 Method Not Allowed\r\nAllow: POST"
  elseif not length then
    return nil, "411 Length Required"
  elseif length > MAX_BYTES then
    return nil, "413 Content Too Large"
  end
  return length == 0 and "" or assert(receive(client, length))
end

local function wait_for_event(stream)
  stream.getfd = stream.wait_handle -- by which socket.select knows what to wait for
  coroutine.yield(reading, stream)
end

local function answer(client, session, question)
  local fed, failure = pcall(session.feed, session, " " .. question)
  if quire.is_error(failure, "INVALID_TEXT") then
    return refuse(client, "400 Bad Request")
  end
  assert(fed, failure)
  begin(client, OK)
  for event in session:stream({ max_tokens = MAX_TOKENS, wait = wait_for_event }) do
    -- While the question is read, too, when there is nothing to send.
    assert(select(2, client:receive(1)) ~= "closed", "the client left")
    if event.text ~= "" then
      send(client, ("%x\r\n"):format(#event.text) .. event.text .. "\r\n")
    end
  end
  send(client, "0\r\n\r\n")
end

local function interrupted(failure)
  return tostring(failure):find("interrupted!", 1, true) -- what Lua makes of Ctrl-C
end

-- Does what one connection asks for.
local function serve(client, document)
  client:settimeout(0)
  client:setoption("tcp-nodelay", true)
  local ok, failure = pcall(function()
    local question, status = read_question(client)
    if not question then
      return refuse(client, status)
    end
    quire.with(document:fork(), function(session)
      answer(client, session, question)
    end)
  end)
  client:close()
  if interrupted(failure) then
    error(failure, 0)
  elseif not ok then
    io.stderr:write("a request ended early: ", tostring(failure), "\n") -- and so did the response, without a last chunk
  end
end

local function accept(listener, document)
  local n_clients = 0
  local function serve_one(client)
    n_clients = n_clients + 1
    serve(client, document)
    n_clients = n_clients - 1
  end
  while true do
    coroutine.yield(reading, listener)
    local client = listener:accept()
    if client and n_clients < MAX_CLIENTS then
      go_on(coroutine.wrap(serve_one), client)
    elseif client then
      client:close()
    end
  end
end

local function keys(list)
  local all = {}
  for key in pairs(list) do
    all[#all + 1] = key
  end
  return all
end

-- Lets each coroutine go on when what it waits for is there. Ctrl-C is noticed between two waits.
local function run()
  while true do
    local readable, writable = socket.select(keys(reading), keys(writing), 0.2)
    for list, objects in pairs({ [reading] = readable, [writing] = writable }) do
      for _, object in ipairs(objects) do
        local resume = list[object]
        list[object] = nil
        go_on(resume)
      end
    end
  end
end

local host, port = (arg[3] or ""):match("^(.+):(%d+)$")
if not host then
  io.stderr:write("server.lua MODEL_DIR FILE HOST:PORT\n")
  os.exit(2)
end
if jit then
  jit.off() -- compiled code does not see the interrupt that Ctrl-C asks LuaJIT for
end
local opened = assert(io.open(arg[2], "rb"))
local runtime = quire.runtime()
local document = runtime:load(arg[1]):session("dca")
document:feed(opened:read("*a"))
document:prefill()

local listener = assert(socket.bind(host, port, MAX_WAITING))
listener:settimeout(0)
go_on(coroutine.wrap(accept), listener, document)
print(("listening at http://%s:%d/"):format(host, select(2, listener:getsockname())))
io.stdout:flush()
local _, failure = pcall(run)
if not interrupted(failure) then
  error(failure, 0)
end
runtime:close()
