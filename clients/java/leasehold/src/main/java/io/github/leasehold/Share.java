package io.github.leasehold;

import java.util.LinkedHashMap;
import java.util.Map;

/** How much of a resource a claim wants: all of it, or a part beside others. */
public final class Share {
    /** All of it: one holder at a time, with a fencing token. The default. */
    public static final Share EXCLUSIVE = new Share(null);
    /** A reader: many at a time, while nobody writes. */
    public static final Share READ = new Share("read");
    /** A writer: alone. */
    public static final Share WRITE = new Share("write");

    private final Object json;

    private Share(Object json) {
        this.json = json;
    }

    /**
     * A part of a semaphore. All claims on one resource must name the same capacity.
     *
     * @param weight the part, at least 1
     * @param capacity the whole, at least the weight
     * @return the share
     */
    public static Share of(int weight, int capacity) {
        if (weight < 1 || capacity < weight) {
            throw new InvalidException("weight " + weight + " with capacity " + capacity + ": the weight must be from 1 to the capacity");
        }
        Map<String, Object> parts = new LinkedHashMap<>();
        parts.put("weight", weight);
        parts.put("capacity", capacity);
        return new Share(parts);
    }

    /** What stands in a request; null for an exclusive claim. */
    Object json() {
        return json;
    }

    @Override
    public String toString() {
        return json == null ? "exclusive" : Json.write(json);
    }
}
