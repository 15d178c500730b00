package io.github.leasehold;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;

/** How a lease is acquired. Immutable: each method returns other options. */
public final class LeaseOptions {
    private static final LeaseOptions DEFAULTS = new LeaseOptions(new State());

    private final State state;

    private LeaseOptions(State state) {
        this.state = state;
    }

    /** The fields, which are never changed once they are in options. */
    private static final class State implements Cloneable {
        private Duration ttl = Duration.ofSeconds(30);
        private Duration wait = Duration.ofSeconds(10);
        private Share share = Share.EXCLUSIVE;
        private Note note;
        private String label;
        private String level;
        private long floor;
        private boolean renewed = true;

        @Override
        public State clone() {
            try {
                return (State) super.clone();
            } catch (CloneNotSupportedException error) {
                throw new IllegalStateException("it is Cloneable", error);
            }
        }
    }

    private interface Change {
        void on(State state);
    }

    private LeaseOptions with(Change change) {
        State changed = state.clone();
        change.on(changed);
        return new LeaseOptions(changed);
    }

    /**
     * An exclusive lease of 30 s, which is renewed in the background. {@code acquire} waits 10 s for it.
     *
     * @return the options
     */
    public static LeaseOptions defaults() {
        return DEFAULTS;
    }

    /**
     * How long others wait if this process dies. The lease is renewed every third of it.
     *
     * @param ttl 1 ms or more; the server may shorten it. Default: 30 s
     * @return the options
     */
    public LeaseOptions ttl(Duration ttl) {
        if (ttl.toMillis() < 1) {
            throw new InvalidException("a ttl is at least 1 ms");
        }
        return with(state -> state.ttl = ttl);
    }

    /**
     * How long {@code acquire} waits while others hold the resource. Default: 10 s.
     *
     * @param wait zero for a single try
     * @return the options
     */
    public LeaseOptions waitAtMost(Duration wait) {
        if (wait.isNegative()) {
            throw new InvalidException("the time to wait is negative");
        }
        return with(state -> state.wait = wait);
    }

    /**
     * Lets {@code acquire} wait for as long as others hold the resource: for candidates in an election. It still fails when no server has
     * answered for a minute.
     *
     * @return the options
     */
    public LeaseOptions waitForever() {
        return with(state -> state.wait = null);
    }

    /**
     * How much of the resource: a reader, a writer, a part of a semaphore. Default: all of it.
     *
     * @param share the share
     * @return the options
     */
    public LeaseOptions share(Share share) {
        Objects.requireNonNull(share, "share");
        return with(state -> state.share = share);
    }

    /**
     * A note that others can read: of a candidate in an election, its address.
     *
     * @param note the text
     * @return the options
     */
    public LeaseOptions note(String note) {
        return note(Note.of(note));
    }

    /**
     * A note that others can read.
     *
     * @param note the note
     * @return the options
     */
    public LeaseOptions note(Note note) {
        Objects.requireNonNull(note, "note");
        return with(state -> state.note = note);
    }

    /**
     * The purpose, for people. Default: the label of the client.
     *
     * @param label a short text
     * @return the options
     */
    public LeaseOptions label(String label) {
        Objects.requireNonNull(label, "label");
        return with(state -> state.label = label);
    }

    /**
     * Refuses a store that promises less.
     *
     * @param level {@code best-effort}, {@code quorum}, {@code database} or {@code consensus}
     * @return the options
     */
    public LeaseOptions level(String level) {
        Objects.requireNonNull(level, "level");
        return with(state -> state.level = level);
    }

    /**
     * The new fencing token will be above this one, even if the store has lost its memory.
     *
     * @param token the highest token that the protected resource has seen
     * @return the options
     */
    public LeaseOptions tokenAbove(long token) {
        if (token < 1) {
            throw new InvalidException("a token is at least 1");
        }
        return with(state -> state.floor = token);
    }

    /**
     * Does not renew the lease: it ends after its ttl, unless the program calls {@link Lease#extend}. Nobody warns before, and if its ttl is
     * shorter than the answer took, it is over from the beginning: call {@link Lease#check()}.
     *
     * @return the options
     */
    public LeaseOptions withoutRenewal() {
        return with(state -> state.renewed = false);
    }

    Duration ttl() {
        return state.ttl;
    }

    /** Empty: without a limit. */
    Optional<Duration> waitLimit() {
        return Optional.ofNullable(state.wait);
    }

    boolean isRenewed() {
        return state.renewed;
    }

    /** The fields of a request. */
    Map<String, Object> fields(String defaultLabel) {
        Map<String, Object> fields = new LinkedHashMap<>();
        if (state.share.json() != null) {
            fields.put("share", state.share.json());
        }
        if (state.note != null) {
            fields.put(state.note.field().getKey(), state.note.field().getValue());
        }
        String label = state.label == null ? defaultLabel : state.label;
        if (!label.isEmpty()) {
            fields.put("label", label);
        }
        if (state.level != null) {
            fields.put("level", state.level);
        }
        if (state.floor > 0) {
            fields.put("floor", Long.toString(state.floor));
        }
        return fields;
    }
}
