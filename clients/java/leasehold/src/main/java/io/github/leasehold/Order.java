package io.github.leasehold;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * What an operator orders. It is written to the audit trail, with its reason. Immutable: each method returns another order.
 *
 * <p>An order to ask or to evict says which grant it means: {@link #token(long)}, or {@link #any()}.
 */
public final class Order {
    private final Map<String, Object> fields;

    private Order(Map<String, Object> fields) {
        this.fields = fields;
    }

    private static Order of(String action, String resource, String why) {
        Names.keyOf(resource);
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("resource", resource);
        fields.put("action", action);
        fields.put("why", why);
        return new Order(fields);
    }

    private Order with(String field, Object value) {
        Map<String, Object> more = new LinkedHashMap<>(fields);
        more.put(field, value);
        return new Order(more);
    }

    /**
     * An order by the name of its action.
     *
     * @param action {@code ask}, {@code evict}, {@code evict-now}, {@code evict-foreign}, {@code pause}, {@code resume}, {@code resize}
     * @param resource the resource
     * @param why the reason
     * @return the order
     */
    public static Order named(String action, String resource, String why) {
        return of(action, resource, why);
    }

    /**
     * Asks the holder to finish.
     *
     * @param resource the resource
     * @param within how much time the holder has
     * @param why the reason
     * @return the order
     */
    public static Order ask(String resource, Duration within, String why) {
        return of("ask", resource, why).with("within_ms", Protocol.millis(within));
    }

    /**
     * Ends the holder's lease at its expiry.
     *
     * @param resource the resource
     * @param why the reason
     * @return the order
     */
    public static Order evict(String resource, String why) {
        return of("evict", resource, why);
    }

    /**
     * Ends the holder's lease at once, before the holder knows: two may run.
     *
     * @param resource the resource
     * @param why the reason
     * @return the order
     */
    public static Order evictNow(String resource, String why) {
        return of("evict-now", resource, why);
    }

    /**
     * Removes the lock of another program, which uses the same store without leasehold: two may run.
     *
     * @param resource the resource
     * @param valueHash the {@link ForeignLock#valueHash()} of the lock that is meant
     * @param why the reason
     * @return the order
     */
    public static Order evictForeign(String resource, String valueHash, String why) {
        return of("evict-foreign", resource, why).with("value_hash", valueHash);
    }

    /**
     * Grants nothing for a while.
     *
     * @param resource the resource
     * @param lasting how long
     * @param why the reason
     * @return the order
     */
    public static Order pause(String resource, Duration lasting, String why) {
        return of("pause", resource, why).with("lasting_ms", Protocol.millis(lasting));
    }

    /**
     * Ends a pause.
     *
     * @param resource the resource
     * @param why the reason
     * @return the order
     */
    public static Order resume(String resource, String why) {
        return of("resume", resource, why);
    }

    /**
     * Changes the capacity of a semaphore.
     *
     * @param resource the resource
     * @param capacity the new capacity
     * @param why the reason
     * @return the order
     */
    public static Order resize(String resource, int capacity, String why) {
        return of("resize", resource, why).with("capacity", capacity);
    }

    /**
     * The grant that is meant.
     *
     * @param token its fencing token
     * @return the order
     */
    public Order token(long token) {
        return with("token", Long.toString(token));
    }

    /**
     * The newest grant.
     *
     * @return the order
     */
    public Order any() {
        return with("any", true);
    }

    /**
     * Who orders. Only used by servers that ask for no token: the others know it.
     *
     * @param operator a name
     * @return the order
     */
    public Order by(String operator) {
        return with("by", operator);
    }

    Map<String, Object> fields() {
        return fields;
    }

    /** The key of its resource, which an answer must name. */
    String key() {
        return Names.keyOf((String) fields.get("resource"));
    }

    @Override
    public String toString() {
        return Json.write(fields);
    }
}
