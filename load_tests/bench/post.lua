-- Posts one body over and over: wrk -s post.lua URL -- BODY_FILE "Name: value" ...
-- Prints what it measured as one line of JSON.

function init(args)
   local file = assert(io.open(args[1], "rb"))
   wrk.method, wrk.body = "POST", file:read("*a")
   file:close()
   for i = 2, #args do
      local name, value = args[i]:match("^(.-): (.*)$")
      wrk.headers[name] = value
   end
end

function done(summary, latency, requests)
   local errors = summary.errors
   io.write(string.format(
      '\n{"requests": %d, "microseconds": %d, "bytes": %d, "p50_us": %d, "p99_us": %d, "max_us": %d, ' ..
      '"status": %d, "connect": %d, "read": %d, "write": %d, "timeout": %d}\n',
      summary.requests, summary.duration, summary.bytes, latency:percentile(50), latency:percentile(99), latency.max,
      errors.status, errors.connect, errors.read, errors.write, errors.timeout))
end
