-- release, the plain case, for one lease: where nothing waits and nothing shares, without a tombstone. ADR 0038.
--
-- KEYS  1 owner  2 state
-- ARGV  1 owner
-- Reply 1 it was held; 0 it was not; 2 not plain, and nothing was done: release.lua must take a closer look
--
-- Compares and deletes the owner key. `state` exists if there is anything but a plain holder.

local value = redis.call('MGET', KEYS[1], KEYS[2])
local held = value[1]
if value[2] then return 2 end
if not held or string.sub(held, 1, 33) ~= ARGV[1] .. '|' then return 0 end
-- A holder with marks may be kept: then it was released before.
if not string.find(held, '^%d+|%d+|%d+||', 34) then return 2 end
redis.call('DEL', KEYS[1])
return 1
