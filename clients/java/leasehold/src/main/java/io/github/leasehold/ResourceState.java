package io.github.leasehold;

import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;

/**
 * A resource as it is now.
 *
 * @param name its name, as people write it
 * @param key its key, which orders resources
 * @param capacity the capacity while it is in use
 * @param holders the holders, by token
 * @param holderCount the number of all holders
 * @param queue the head of the queue
 * @param queueLength the number of all waiting claims
 * @param lastToken the newest token, where the store remembers it
 * @param pausedFor the time until an operator's pause ends
 * @param foreign locks of other programs, which use the same store without leasehold
 * @param unreadable why it cannot be read; then nothing else is known about it
 * @param cursor where to wait for a change from
 */
public record ResourceState(
        String name,
        String key,
        int capacity,
        List<Holder> holders,
        int holderCount,
        List<Waiter> queue,
        int queueLength,
        OptionalLong lastToken,
        Optional<Duration> pausedFor,
        List<ForeignLock> foreign,
        Optional<String> unreadable,
        String cursor) {

    static ResourceState read(Doc doc) {
        return new ResourceState(
                doc.text("resource"),
                doc.text("key"),
                doc.whole("capacity"),
                doc.docs("holders").stream().map(Holder::read).toList(),
                doc.whole("holder_count"),
                doc.docs("queue").stream().map(Waiter::read).toList(),
                doc.whole("queue_length"),
                doc.optToken("last_token"),
                doc.optMillis("paused_for_ms"),
                doc.docs("foreign").stream().map(ForeignLock::read).toList(),
                doc.optText("unreadable").map(Problems::printable),
                doc.text("cursor"));
    }

    /**
     * The leader of an election, which is the holder of its resource.
     *
     * @return the leader, if there is one
     * @throws CorruptException if the resource cannot be read: then nobody knows
     */
    public Optional<Leader> leader() {
        unreadable.ifPresent(why -> {
            throw new CorruptException(name + " cannot be read: " + why, Effect.NONE);
        });
        return holders.stream().filter(holder -> !holder.kept()).reduce((first, second) -> second).map(Leader::of);
    }
}
