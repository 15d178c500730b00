-- acquire with a predecessor, the plain case: a handover of 1 of 1 within a client, where nothing waits and nothing shares.
-- ADR 0038.
--
-- KEYS  1 owner  2 fence  3 state  4 the tombstone of the owner  5 the tombstone of the predecessor
-- ARGV  1 the lead of the epoch in microseconds  2 owner  3 ttl ms  4 who  5 floor or 0  6 the owner of the predecessor
--       7 ttl of its tombstone in ms, or -1
-- Reply granted, token, remaining ms, how far the token is ahead of the clock in microseconds
--       0: not plain, and nothing was done; acquire.lua must take a closer look

local call = redis.call
local value = call('MGET', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
local held, fence = value[1], value[2]
if value[3] or value[4] or not held or string.sub(held, 1, 33) ~= ARGV[6] .. '|' then return 0 end
-- The empty field is the marks: a holder with marks is not plain.
local newest, handovers = string.match(held, '^(%d+)|%d+|(%d+)||', 34)
if not newest then return 0 end
if fence then
  if string.find(fence, '%D') or fence == '' then return 0 end
elseif call('EXISTS', KEYS[2]) == 1 then
  return 0
end
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local clock_us, floor = now_us + ARGV[1], tonumber(ARGV[5])
-- As next_token in acquire.lua. A floor more than a day ahead, or a token at 2^53, is left to that script.
local token = math.max((fence or 0) + 1, newest + 1, clock_us, floor + 1)
if floor > clock_us + 86400000000 or token >= 9007199254740992 then return 0 end
local text = string.format('%.0f', token)
call('SET', KEYS[1],
  ARGV[2] .. '|' .. text .. '|' .. string.format('%.0f', now_us) .. '|' .. handovers + 1 .. '||' .. ARGV[4], 'PX', ARGV[3])
call('SET', KEYS[2], text, 'PX', 7200000 + math.max(0, math.ceil((token - now_us) / 1000)))
if ARGV[7] ~= '-1' then call('SET', KEYS[5], 'b', 'PX', math.max(1, ARGV[7])) end
return { 'granted', text, tonumber(ARGV[3]), math.max(0, token - clock_us) }
