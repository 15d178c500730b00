-- The host was started anew: every lease, place and tombstone is over. What is closed by a calendar date stays
-- closed: pauses, and seats that were released to be kept. Tokens and the audit trail stay.

-- name: end_seats
DELETE FROM seat WHERE kept = 0;

-- name: end_places
DELETE FROM place;

-- name: end_graves
DELETE FROM grave;

-- name: move_seats
-- takes  ?1 now, ?2 the calendar's now in microseconds
-- A calendar that went back cannot prolong it beyond what was asked.
UPDATE seat SET ends = ?1 + min(kept, max(kept_wall - ?2, 0) * 1000), since = ?1;

-- name: move_resources
-- takes  ?1 now, ?2 the calendar's now in microseconds
-- `settle_at` 0 makes the next verb look at what has ended.
UPDATE resource SET
    held = (SELECT coalesce(sum(weight), 0) FROM seat WHERE seat.resource = resource.id),
    seats = (SELECT count(*) FROM seat WHERE seat.resource = resource.id),
    places = 0, graves = 0, settle_at = 0, watched_until = 0, version = version + 1,
    paused_until = iif(paused_until = 0, 0, ?1 + min(paused_for, max(paused_wall - ?2, 0) * 1000));
