-- release: gives up a lease, or leaves the queue. Put after resource.lua.
--
-- KEYS  1-9 as in resource.lua
-- ARGV  3 listener  4 owner  5 ttl of the tombstone in ms, or -1  6 keep the resource closed for ms, or 0
-- Reply 1 the owner held a lease or waited; 0 it did neither

local owner, tombstone_ms, keep_ms = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
remove_expired()
pass_over_silent()

local lease = lease_of(owner)
-- A kept lease was released before.
if lease and has(lease, 'k') then lease = nil end
local was_there = lease ~= nil
if lease and keep_ms > 0 then
  lease.marks = lease.marks .. 'k'
  store(lease, after(keep_ms))
  note_change()
  -- A plain holder stays plain when it is kept: no `state` is written for it.
  dirty = state_exists
elseif lease then
  end_lease(lease)
else
  was_there = leave_queue(owner, true)
end
if tombstone_ms >= 0 then write_tombstone(GRAVE, 'b', tombstone_ms) end
finish()
return was_there and 1 or 0
