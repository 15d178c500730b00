-- One resource: the variables that every verb uses. Put before resource.lua, outside of its function; never run alone.
--
-- They are in a file of their own for speed: a Lua function that is created finds a variable of the function around it by
-- a search among all of them, but a variable that is further outside at once.
--
-- KEYS  1 owner   string  owner|token|since|handovers|marks|who: the holder of 1 of 1; its expiry is the end of the lease
--       2 fence   string  the newest token; its expiry is the retention
--       3 shares  zset    owner -> end of the lease: the holders of other shares
--       4 claims  hash    owner -> weight|token|since|handovers|marks|who of a holder in `shares`,
--                         owner -> weight|since|listener|client|heard|called|who of a waiter;
--                         owner:note, owner:asked, owner:by, owner:why of a holder
--       5 line    zset    owner -> arrival number: the queue. A silent waiter has a number above SILENT
--       6 places  zset    owner -> end of its place in the queue
--       7 state   string  `name=value` of capacity, held (the weights in shares), version, arrivals, ends (no share and no
--                         place ends before), until (when these keys expire), pause, extra, watched, silent (how many
--                         waiters are silent), look (no called waiter becomes silent before); `-` for none
--       8 watch   zset    client -> until when it is woken by any change
--       9 grave   string  b (cancelled) or e (evicted): the tombstone of the owner of the claim
-- ARGV  1 the key of the resource, for messages   2 the prefix of a client's channel
-- Reply as in the file of each verb
--
-- Times are of the server's clock: `since`, `heard`, `called` and `look` in microseconds, ends in milliseconds, rounded up.
-- What ends at t is over at t. Keys are read before the first one is written, so an error of a wrong type has no effect.
-- Every command costs the server time, so nothing is read that is not needed: four keys in one `MGET`, the length of the
-- queue when a rule asks for it, the expired entries when `ends` has come.
--
-- A waiter:
--   listener  the id of the Redis client that receives its wake-ups, with a + if that client is subscribed
--   client    the ClientId of its claim, or empty
--   heard     when its last request came: acquire or renew
--   called    when it was told that it can be granted; empty if it has answered since
-- The rules are those of queue.rs in leasehold-core. A silent waiter stays in `line`, behind all others: with its arrival
-- number plus SILENT. When it is heard, it gets its arrival number back. So a rank in `line` counts live waiters only, and
-- silent ones cost nothing. If nobody receives the message to a listener with a +, its waiters are silent at once.
--
-- The marks of a holder:
--   e  evicted: not renewed any more
--   k  kept: its owner has released it, and it stays closed until its end (`keep_for`)
--   x  extras: more about it is in `claims`, and its owner is in the field `extra` of `state`
--
-- ADR 0038: the plain scripts rely on it that `state` exists as soon as there is anything but a plain holder.

local OWNER, FENCE, SHARES, CLAIMS, LINE, PLACES, STATE, WATCH, GRAVE =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
-- How many waiters at the head of the queue are looked at; how many expired entries one call removes; how much longer
-- than their content keys live, in ms.
local WINDOW, SWEEP, SLACK, TEN_YEARS = 64, 500, 60000, 315360000000
-- What is added to the arrival number of a silent waiter; how many waiters at the head can become silent in one call; how
-- long a called waiter may take to answer, in microseconds.
local SILENT, SILENCED_MAX, ANSWER_WITHIN = 4503599627370496, 256, 1000000
local TOKEN_END = 9007199254740992 -- 2^53: above, Lua's numbers are no longer exact
local NO_HASH = '0000000000000000' -- the hash of a foreign lock that cannot be read

local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = now_us / 1000

-- Without a format, Lua would write a large number as 1.7e+15.
local function int(number) return string.format('%.0f', number) end
local function after(ms) return math.ceil(now) + ms end
local function left(ends) return math.max(0, math.floor(ends - now)) end
local function has(lease, mark) return string.find(lease.marks, mark, 1, true) ~= nil end

-- The fields of `state`. `next_end` is the field `ends`, `keys_until` the field `until`.
local capacity, held, version, arrivals, next_end, keys_until, pause, extra, watched =
  1, 0, now_us, 0, math.huge, 0, nil, false, false
local STATE_PATTERN = '^capacity=(%d+) held=(%d+) version=(%d+) arrivals=(%d+) ends=([%d-]+) until=(%d+) pause=([%d-]+) '
  .. 'extra=([%x-]+) watched=([1-]) silent=(%d+) look=([%d-]+)(!?)$'
-- look_is_sure: see `blocked` in acquire.lua; the ! after the field `look`.
local silent, look, look_is_sure = 0, nil, false
local share_count = 0
-- The length of the queue with the silent waiters, and the first waiter that is not silent; nil if not known yet.
local queue_count, first_waiter
-- others_wait: the queue is not empty, although its length is not known.
-- looked: `look` has come, or it is not known whether all waiters that can be granted were called.
-- state_exists: `state` is stored.       dirty: `state` must be written.   fresh: a key may be new, without an expiry.
-- changed: clients that watch are woken. freed: capacity or a place became free, so waiters may be grantable.
local others_wait, state_exists, dirty, fresh, changed, freed, looked = false, false, false, false, false, false, false
-- Until when there is content in the keys: they must not expire before.
local content_until = 0
local holder -- the holder in the owner key: a lease, or the lock of another program with the field `foreign`
local last -- the value of the fence, or false if it is missing or has another type
local tombstone -- the value of the tombstone, or false
