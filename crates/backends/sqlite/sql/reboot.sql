-- The host was rebooted: every lease, place in a queue and tombstone has ended. Pauses, and holders that were
-- released with `keep_for`, are promises of a date: they stay until the same wall clock time (ADR 0010).
-- Tokens and the audit trail stay.

-- name: remove_holders
DELETE FROM seat WHERE kept = 0;

-- name: remove_places
DELETE FROM place;

-- name: remove_tombstones
DELETE FROM grave;

-- name: move_kept
-- takes  ?1 now by the boot clock, ?2 now by the wall clock in microseconds
-- `min` because a wall clock that went back must not extend it beyond the length that was asked for.
UPDATE seat SET ends = ?1 + min(kept, max(kept_wall - ?2, 0) * 1000), since = ?1;

-- name: move_resources
-- takes  ?1 now by the boot clock, ?2 now by the wall clock in microseconds
-- `settle_at` 0 makes the next verb look for rows that have ended.
UPDATE resource SET
    held = (SELECT coalesce(sum(weight), 0) FROM seat WHERE seat.resource = resource.id),
    seats = (SELECT count(*) FROM seat WHERE seat.resource = resource.id),
    places = 0, graves = 0, settle_at = 0, watched_until = 0, silence_at = 0, silent = 0,
    version = version + 1,
    paused_until = iif(paused_until = 0, 0, ?1 + min(paused_for, max(paused_wall - ?2, 0) * 1000));
