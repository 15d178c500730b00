-- release: gives up a seat, or leaves the line.
--
-- KEYS  1-9 as in resource.lua
-- ARGV  3 client  4 owner  5 bury for ms, or -1  6 keep closed for ms, or 0
-- Reply 1 it held or waited; 0 there was nothing of it

local owner, bury_ms, keep_ms = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
settle()

local seat = seat_of(owner)
if seat and has(seat, 'k') then seat = nil end
local was_there = seat ~= nil
if seat and keep_ms > 0 then
  seat.marks = seat.marks .. 'k'
  store(seat, after(keep_ms))
  note_change()
  dirty = there
elseif seat then
  stand_up(seat)
else
  was_there = leave_line(owner, true)
end
if bury_ms >= 0 then bury(GRAVE, 'b', bury_ms) end
finish()
return was_there and 1 or 0
