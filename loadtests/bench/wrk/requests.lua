-- Requests for wrk, each with a unique input, and the figures of a run as one line of JSON.
--
--   wrk ... -s requests.lua URL -- FILE FIRST
--
-- loadtests/bench/bodies.py writes FILE. Its first line has the number of templates, the format of
-- their own numbers (json, binary, or none if requests repeat), and the number of entries in the
-- order; the second line is the order of the templates. Then comes a line per template with the
-- lengths of its pieces, and then all pieces, one after the other.
-- Between two pieces goes a number that no other request has; FIRST is the first request's number.

local bit = require("bit")
local ffi = require("ffi")

local templates, order = {}, {} -- a template: a whole request, and the places of its own numbers
local form
local owners = 0 -- own numbers per request

sent = 0 -- global: done() reads it from the thread

local first = 0
local main -- the only thread

function setup(thread)
  main = thread
end

-- JSON: 0.0000000 to 0.9999999. Binary: float32 of 0.5 to 1, with all bits of the mantissa used.
local function own(number)
  if form == "json" then
    return string.format("0.%07d", number)
  end
  local low, middle = bit.band(number, 255), bit.band(bit.rshift(number, 8), 255)
  return string.char(low, middle, bit.band(bit.rshift(number, 16), 127), 63)
end

function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  first = tonumber(arguments[2])
  local count, turns
  count, form, turns = file:read("*l"):match("^(%d+) (%a+) (%d+)$")
  for index in file:read("*l"):gmatch("%d+") do
    order[#order + 1] = tonumber(index) + 1
  end
  assert(#order == tonumber(turns), "the file of requests is damaged")
  local lengths = {}
  for index = 1, tonumber(count) do
    lengths[index] = file:read("*l")
  end
  for index = 1, tonumber(count) do
    local parts, places, size = {}, {}, 0
    for length in lengths[index]:gmatch("%d+") do
      if #parts > 0 then
        places[#places + 1] = size
        parts[#parts + 1] = own(index)
        size = size + #parts[#parts]
      end
      parts[#parts + 1] = file:read(tonumber(length))
      size = size + tonumber(length)
    end
    templates[index] = { whole = table.concat(parts), places = places }
  end
  owners = #templates[1].places
  file:close()
end

function request()
  local number = first + sent
  sent = sent + 1
  local template = templates[order[number % #order + 1]]
  -- In place: Lua strings cannot be changed otherwise, and a new string for a large body would cost
  -- more than the server's work on it. wrk copies the returned string before its next call.
  local at = ffi.cast("char *", template.whole)
  for index, place in ipairs(template.places) do
    local text = own(number * owners + index - 1)
    ffi.copy(at + place, text, #text)
  end
  return template.whole
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"sent": %d, "answered": %d, "seconds": %.6f, "p50_ms": %.4f, "p99_ms": %.4f, ' ..
    '"not_200": %d, "broken": %d, "timeouts": %d}\n',
    main:get("sent"), summary.requests, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.status, errors.connect + errors.read + errors.write, errors.timeout
  ))
end
