-- What acquire_plain.lua reads. Put before it, outside of its function, so that one MGET and one TIME serve all claims.

local call = redis.call
local values = call('MGET', unpack(KEYS)) -- for each claim: owner, fence, state, the tombstone of the owner
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local clock_us = now_us + ARGV[1]
local now_text = string.format('%.0f', now_us)
local number = 1 -- which claim of this call is decided
