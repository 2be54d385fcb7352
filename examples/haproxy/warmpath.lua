-- Asks a look-aside server which replica a request should go to. See haproxy.cfg for what is set where.
--
-- The action warmpath_route leaves behind
--
--   txn.warmpath_replica   the server of the backend to use; not set where there is no pick
--   txn.warmpath_reason    why that one, or why none: docs/http-endpoint.md lists the reasons
--   txn.warmpath_status    400, 404 or 503 where the client is to be refused, with txn.warmpath_refusal as the body
--   txn.warmpath_after     with 503: after how many seconds the client may ask again
--   txn.warmpath_asked_ms  how long it took

local ask_at = os.getenv("WARMPATH_ASK") or "127.0.0.1:4779"
local deployment = os.getenv("WARMPATH_DEPLOYMENT")
local token = os.getenv("WARMPATH_TOKEN")
local forward_body = os.getenv("WARMPATH_FORWARD_BODY") ~= nil

-- spelled makes two spellings of a header's name equal.
local function spelled(name)
    return (name:lower():gsub("_", "-"))
end

local session_header = spelled(os.getenv("WARMPATH_SESSION") or "x-session-id")

-- this_process tells HAProxy processes apart, also two on one machine.
local this_process

-- ongoing returns the requests that this process has at each server, and those that began there so far.
local function ongoing(backend)
    if not this_process then
        local info = core.get_info()
        this_process = (info["node"] or "") .. "/" .. (info["Pid"] or "")
    end
    local counts = {}
    for id, server in pairs(backend.servers) do
        local stats = server:get_stats()
        counts[#counts + 1] = id .. "=" .. stats["scur"] .. "/" .. stats["stot"]
    end
    return this_process .. "; " .. table.concat(counts, ", ")
end

-- question returns the headers and the body to ask with.
local function question(txn, backend)
    local headers = { ["content-type"] = { "application/json" }, ["x-warmpath-ongoing"] = { ongoing(backend) } }
    for name, values in pairs(txn.http:req_get_headers()) do
        if spelled(name) == session_header then
            headers["x-session-id"] = { values[0] }
        elseif name == "x-request-id" or name == "traceparent" or name == "tracestate" then
            headers[name] = { values[0] }
        end
    end
    if deployment then
        headers["x-warmpath-deployment"] = { deployment }
    end
    if token then
        headers["authorization"] = { "Bearer " .. token }
    end
    if not forward_body then
        return headers, ""
    end
    local body = txn.sf:req_body()
    local full = tonumber(txn.sf:req_body_size()) or #body
    if #body < full then
        headers["x-body-truncated"] = { #body .. "/" .. full }
    end
    return headers, body
end

-- post asks once, and returns the status, the reason or nil, the body of the answer, and its Retry-After or nil. The address it asks at is HAProxy's
-- own, which checks the servers' health and keeps the deadlines.
local function post(headers, body)
    local answer = core.httpclient():post {
        url = "http://" .. ask_at .. "/internal/route",
        headers = headers,
        body = body,
    }
    if not answer or not answer.status or answer.status == 0 then
        return 503, "server_unreachable", ""
    end
    local reason = answer.headers and answer.headers["x-warmpath-reason"]
    local after = answer.headers and answer.headers["retry-after"]
    return answer.status, reason and reason[0], answer.body or "", after and after[0]
end

-- trouble returns why a replica cannot be used, nil if it can.
local function trouble(backend, id)
    local server = backend.servers[id]
    if not server then
        return "unknown_replica"
    end
    local status = server:get_stats()["status"]
    if status:find("^DOWN") or status:find("^MAINT") or status:find("^DRAIN") or status:find("^NOLB") then
        return "replica_down"
    end
end

-- passed_on are the reasons for which the client is refused; for all others there is a fallback.
local passed_on = { invalid_request = 400, unknown_model = 404, full = 503 }

-- pick returns the id of a replica or nil, the reason, what to refuse the client with or nil, and for how long. Where HAProxy cannot use
-- the replica it asks for another one, twice at most.
local function pick(txn, backend)
    local headers, body = question(txn, backend)
    local excluded, why = {}, nil
    for _ = 1, 3 do
        local status, reason, answer, after = post(headers, body)
        if status ~= 200 then
            return nil, reason or "router_non_200", passed_on[reason] == status and answer or nil, after
        end
        local id = answer:match('"replica_id"%s*:%s*"([^"\\]+)"')
        if not id then
            return nil, "unparseable_replica_id"
        end
        why = trouble(backend, id)
        if not why then
            local rank = answer:match('"x%-data%-parallel%-rank"%s*:%s*"(%d+)"')
            if rank then
                txn.http:req_set_header("x-data-parallel-rank", rank)
            end
            return id, reason
        end
        excluded[#excluded + 1] = id
        headers["x-warmpath-exclude"] = { table.concat(excluded, ",") }
    end
    return nil, why
end

core.register_action("warmpath_route", { "http-req" }, function(txn, name)
    local began = core.now()
    local id, reason, refusal, after = pick(txn, core.backends[name])
    local now = core.now()
    local took = (now.sec - began.sec) * 1000 + (now.usec - began.usec) // 1000
    txn:set_var("txn.warmpath_asked_ms", took)
    if reason then
        txn:set_var("txn.warmpath_reason", reason)
    end
    if id then
        txn:set_var("txn.warmpath_replica", id)
    elseif refusal then
        txn:set_var("txn.warmpath_status", passed_on[reason])
        txn:set_var("txn.warmpath_refusal", refusal)
        txn:set_var("txn.warmpath_after", after or "1")
    end
end, 1)
